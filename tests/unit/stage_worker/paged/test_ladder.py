"""Sizes of captured decode steps."""

from __future__ import annotations

import pytest

from stage_worker.paged.ladder import fitting, ladder


@pytest.mark.parametrize(
    ("most_rows", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (12, (1, 2, 4, 8, 12)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
    ],
)
def test_sizes(most_rows: int, sizes: tuple[int, ...]) -> None:
    """The largest is what was asked for, even between two steps."""
    assert ladder(most_rows) == sizes


@pytest.mark.parametrize(
    ("num_rows", "size"), [(1, 1), (3, 4), (8, 8), (9, 12), (12, 12), (13, None)]
)
def test_least_that_fits(num_rows: int, size: int | None) -> None:
    """Filler costs, so there is as little as possible; too many rows are not replayed."""
    assert fitting((1, 2, 4, 8, 12), num_rows) == size
