"""How many tokens of a chunk keep all multiprocessors of a GPU busy at once. Pure.

FlashAttention-4 packs the query heads of a kv head into rows, and one multiprocessor computes a
tile of 128 of them. So n tokens of h query heads are n * h / 128 tiles, and so many as there are
multiprocessors take one wave: a chunk that begins another one takes as long as if it filled it.
Source: https://github.com/Dao-AILab/flash-attention (flash_attn/cute: pack_gqa, tile_m)
"""

from __future__ import annotations

_TILE_ROWS = 128
_CELL_TOKENS = 64
"""Borders of chunks are multiples of it."""


def wave_tokens(*, num_multiprocessors: int, num_heads: int) -> int:
    """Return the tokens of one wave, down to a multiple of 64; 0 if it has fewer.

    Args:
        num_multiprocessors: >= 1.
        num_heads: query heads of a layer, >= 1.
    """
    return num_multiprocessors * _TILE_ROWS // num_heads // _CELL_TOKENS * _CELL_TOKENS
