"""Tokens that keep all multiprocessors of a GPU busy at once."""

from __future__ import annotations

import pytest

from stage_worker.paged.waves import wave_tokens


@pytest.mark.parametrize(
    ("num_multiprocessors", "num_heads", "tokens"),
    [(132, 32, 512), (132, 64, 256), (132, 16, 1024), (132, 24, 704), (108, 32, 384), (1, 32, 0)],
)
def test_a_wave_is_a_tile_for_each(num_multiprocessors: int, num_heads: int, tokens: int) -> None:
    """528 tokens of 32 heads on an H200, down to whole cells of 64."""
    assert tokens == wave_tokens(num_multiprocessors=num_multiprocessors, num_heads=num_heads)
