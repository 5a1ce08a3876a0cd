"""How much memory keys and values get."""

from __future__ import annotations

import pytest

from chunkmesh.errors import ConfigError
from stage_worker.paged.capacity import Remaining, capacity_tokens

GIB = 1 << 30
TOKEN_BYTES = 18 * 2 * 8 * 128 * 2
"""Of half of Qwen3-8B."""


def test_a_fraction_of_what_remains_in_whole_pages() -> None:
    """Links take theirs first; one page of the pool is for filler."""
    remaining = Remaining(free_bytes=120 * GIB, link_bytes=GIB, token_bytes=TOKEN_BYTES)
    tokens = capacity_tokens(remaining, 0.9)
    assert tokens % 128 == 0
    assert (tokens + 128) * TOKEN_BYTES <= 0.9 * 119 * GIB < (tokens + 256) * TOKEN_BYTES
    assert tokens > 1 << 20  # a million tokens fit on two such GPUs


@pytest.mark.parametrize("free_bytes", [0, GIB, GIB + 17 * 128 * TOKEN_BYTES - 1])
def test_next_to_nothing_is_refused(free_bytes: int) -> None:
    """A worker that could serve no prompt says so, with the numbers, instead of joining a mesh."""
    remaining = Remaining(free_bytes=free_bytes, link_bytes=GIB, token_bytes=TOKEN_BYTES)
    text = r"--mem-fraction 1.0: \d+\.\d\d GiB .* room for \d+ pages of 128 tokens .* 16 are needed"
    with pytest.raises(ConfigError, match=text):
        capacity_tokens(remaining, 1.0)


def test_the_least_that_is_enough() -> None:
    """Sixteen pages and the one for filler."""
    remaining = Remaining(free_bytes=17 * 128 * TOKEN_BYTES, link_bytes=0, token_bytes=TOKEN_BYTES)
    assert capacity_tokens(remaining, 1.0) == 16 * 128
