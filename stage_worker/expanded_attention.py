"""Attention of a prefill chunk over keys and values that are made from latents for it alone.

The chunk's own latents and those of its context are expanded piece by piece, into memory that all
pieces share, and results are merged as they come: a long context costs time and not memory.

Shapes: t rows of a block, n tokens of a piece, H heads, d width of the cache, v value width,
E width of expanded keys and values.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stage_worker.attention import attend_all, attend_causal, merge
from stage_worker.batch import Part
from stage_worker.kv_pool import ContextReader, KeysValues, KvPool
from stage_worker.latent_expansion import LatentExpansion
from stage_worker.workspace import Buffers, LatentBuffers

PIECE_TOKENS = 1024
"""Tokens that are expanded at a time, and rows that attend together."""


class ExpandedQueries:
    """The query rows of a prefill chunk: all of the context, and each other causally."""

    def __init__(self, part: Part, buffers: Buffers, latent: LatentBuffers, pool: KvPool) -> None:
        end = part.first_row + part.num_rows
        starts = range(part.first_row, end, PIECE_TOKENS)
        self._rows = tuple(slice(start, min(start + PIECE_TOKENS, end)) for start in starts)
        self._latent_Td = buffers.k_1KTd[0, 0]
        self._latent = latent
        self._context = part.context
        self._reader = None if part.context is None else ContextReader(pool, part.context)

    def attend(self, layer: int, expansion: LatentExpansion) -> None:
        """Attend in one layer (index in the stage), from the buffers' queries to their values.

        expansion is the layer's.
        """
        memory = self._latent.expansion
        blocks: list[_Block] = []
        for rows in reversed(self._rows):
            keys_values = expansion.expand(self._latent_Td[rows], memory)
            for later in blocks:
                later.see(keys_values)
            blocks.append(_Block(rows, self._latent, expansion, keys_values))
        for latent_nd in self._pieces(layer):
            keys_values = expansion.expand(latent_nd, memory)
            for block in blocks:
                block.see(keys_values)
        for block in blocks:
            block.write()

    def _pieces(self, layer: int) -> Iterator[torch.Tensor]:
        """Yield the context's latents, [n, d]."""
        if self._context is None or self._reader is None:
            return
        num_tokens = self._context.num_tokens
        for begin in range(0, num_tokens, PIECE_TOKENS):
            yield self._reader.latents(layer, begin, min(begin + PIECE_TOKENS, num_tokens))


class _Block:
    """Some rows, and what they have seen so far: at first, themselves."""

    def __init__(
        self, rows: slice, latent: LatentBuffers, expansion: LatentExpansion, own: KeysValues
    ) -> None:
        turned_tHr = latent.turned.whole_THD[rows]
        self._q_1HtE = expansion.queries(latent.plain_THp[rows], turned_tHr)
        self._value_1Htv = latent.value_THv[rows].transpose(0, 1)[None]
        self._scale = expansion.scale
        self._seen = attend_causal(self._q_1HtE, own, self._scale)

    def see(self, keys_values: KeysValues) -> None:
        """Attend to tokens before the block."""
        self._seen = merge((self._seen, attend_all(self._q_1HtE, keys_values, self._scale)))

    def write(self) -> None:
        """Put the result into the buffers."""
        out_1HtE, _ = self._seen
        self._value_1Htv.copy_(out_1HtE[..., : self._value_1Htv.shape[3]])
