"""Borders of chunks of one size."""

from __future__ import annotations

import pytest

from scheduler.chunking import FixedChunks


@pytest.mark.parametrize(
    ("start", "end", "ends"),
    [
        (0, 1, (1,)),
        (0, 63, (63,)),
        (0, 64, (64,)),
        (0, 65, (64, 65)),
        (0, 128, (64, 128)),
        (0, 129, (64, 128, 129)),
        (48, 49, (49,)),
        (16, 80, (80,)),
        (16, 81, (80, 81)),
    ],
)
def test_fixed_chunks(start: int, end: int, ends: tuple[int, ...]) -> None:
    """No chunk is empty, none is too long, and the first begins at the hit."""
    assert ends == FixedChunks(64).cut(start, end)
