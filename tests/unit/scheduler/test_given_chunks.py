"""Chunks that a client chose: where they end, and which are refused."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvalidRequest
from scheduler.given_chunks import check_chunk_tokens, given_ends


@pytest.mark.parametrize(
    ("sizes", "start", "end", "ends"),
    [
        ((64,), 0, 128, (64, 128)),
        ((64,), 0, 130, (64, 128, 130)),
        ((64,), 32, 130, (96, 130)),
        ((100, 50), 0, 220, (100, 150, 200, 220)),
        ((100, 50), 0, 60, (60,)),
        ((1,), 4, 5, (5,)),
    ],
)
def test_the_last_size_is_repeated(
    sizes: tuple[int, ...], start: int, end: int, ends: tuple[int, ...]
) -> None:
    """One number is a fixed size; the end is reached exactly, also behind a hit."""
    assert ends == given_ends(sizes, start, end)


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ([0], "chunk_tokens[0] is 0, must be in [1, 256]"),
        ([64, 257], "chunk_tokens[1] is 257, must be in [1, 256]"),
        ([64, 1], "cuts 5000 tokens into 4937 chunks, limit 4096"),
    ],
)
def test_what_a_microbatch_cannot_hold_is_refused(sizes: list[int], complaint: str) -> None:
    """Stages' buffers have one size, and a prompt in ones would keep all others waiting."""
    with pytest.raises(InvalidRequest) as refused:
        check_chunk_tokens(sizes, prompt_tokens=5000, max_tokens=256)
    assert complaint in str(refused.value)
    assert "chunk_tokens" == refused.value.field


def test_what_fits_passes() -> None:
    """Sizes beyond the prompt's end as well; none leaves it to the plan."""
    for sizes in ([], [256], [64, 2], [256] * 100):
        check_chunk_tokens(sizes, prompt_tokens=5000, max_tokens=256)
