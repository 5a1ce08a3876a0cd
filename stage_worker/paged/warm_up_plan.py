"""Which dummy microbatches a stage runs before it serves. Pure.

Kernels are compiled for element types, head counts and page sizes, and some for how much of the GPU
a batch fills: a product of n rows is cut to about sms / ceil(n / 64) parts. Five sizes cover the
whole range of that number, from one row to a batch that fills the GPU. Eight-bit products need more
(see row_parts).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

BLOCK_ROWS = 64
"""Rows of a tile of a product."""
PAGE_TOKENS = 128
"""Of the pages that kernels are compiled for; those of another size compile with the first use."""
_FEW_ROWS = (1, 2, 4, 8, 16, 32)
"""Decode rows besides: how many programs a sequence's keys are cut to depends on them."""
_SHORT_CHUNK = 2
"""Attention has a kernel of its own for chunks of some tokens, which takes 2 s to compile."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DummyForward:
    """One microbatch: rows of one token each, or one chunk."""

    num_tokens: int
    is_decode: bool
    start: int = 0
    """Position of a chunk's first token: what is before it is in pages."""

    def __str__(self) -> str:
        if self.is_decode:
            return f"{self.num_tokens} decode rows"
        return f"{self.num_tokens} tokens behind {self.start}"


def batch_sizes(num_sms: int) -> tuple[int, ...]:
    """Return the sizes for a GPU of so many multiprocessors, ascending; five, or fewer if equal."""
    wide = max(num_sms // 8, 2), max(num_sms // 4, 4), num_sms
    return tuple(sorted({1, 2 * BLOCK_ROWS, *(BLOCK_ROWS * tiles for tiles in wide)}))


def forwards(
    sizes: Sequence[int],
    *,
    more_chunks: Sequence[int] = (),
    decodes: bool = True,
    extends: bool = True,
) -> Iterator[DummyForward]:
    """Yield what to run: without decodes no rows of one token, without extends no chunks.

    A chunk of one token is a row of one token. One chunk is behind a prefix.
    """
    if decodes:
        for num_tokens in sorted({*sizes, *_FEW_ROWS}):
            yield DummyForward(num_tokens=num_tokens, is_decode=True)
    chunks = [size for size in sizes if extends and size > 1]
    if chunks:
        for num_tokens in sorted({_SHORT_CHUNK, *chunks, *more_chunks}):
            yield DummyForward(num_tokens=num_tokens, is_decode=False)
        yield DummyForward(num_tokens=chunks[0], is_decode=False, start=PAGE_TOKENS)
