"""Attention of a prefill chunk whose queries look back a limited way.

The keys that any query of a tile sees are laid together and masked; a tile is small beside the
window, so little of that is thrown away. A single query needs no mask, only a shorter context.

Shapes: T query rows, H query heads, K kv heads, n keys, d head_dim.
Source: https://arxiv.org/abs/2310.06825
"""

from __future__ import annotations

import torch

from stage_worker.attention import TILE_ROWS, flash
from stage_worker.batch import Part
from stage_worker.kv_pool import ContextReader, KeysValues, KvPool
from stage_worker.workspace import Buffers


class WindowQueries:
    """The query rows of a prefill chunk, each of which sees window positions, its own included."""

    def __init__(self, part: Part, window: int, buffers: Buffers, pool: KvPool) -> None:
        rows = slice(part.first_row, part.first_row + part.num_rows)
        self._window = window
        self._q_1HTd = buffers.q_THd[rows].transpose(0, 1)[None]
        self._out_1HTd = buffers.attended_THd[rows].transpose(0, 1)[None]
        self._own: KeysValues = (buffers.k_1KTd[:, :, rows], buffers.v_1KTd[:, :, rows])
        self._before: ContextReader | None = None
        self._num_before = 0
        if part.context is not None and window > 1:
            seen = part.context.tail(window - 1, pool.shape.page_tokens)
            self._before = ContextReader(pool, seen)
            self._num_before = seen.num_tokens

    def attend(self, layer: int) -> None:
        """Attend in one layer (index in the stage), from the buffers' q to their attended."""
        k_1Knd, v_1Knd = self._keys_values(layer)
        num_rows = self._q_1HTd.shape[2]
        for begin in range(0, num_rows, TILE_ROWS):
            end = min(begin + TILE_ROWS, num_rows)
            first_key = max(0, self._num_before + begin - self._window + 1)
            keys = slice(first_key, self._num_before + end)
            out, _ = flash(
                self._q_1HTd[:, :, begin:end].contiguous().float(),
                k_1Knd[:, :, keys],
                v_1Knd[:, :, keys],
                attn_mask=self._mask(begin, end, first_key),
            )
            self._out_1HTd[:, :, begin:end].copy_(out)

    def _keys_values(self, layer: int) -> KeysValues:
        """Return the seen context and the chunk itself in one piece, float32."""
        before = () if self._before is None else self._before.segments(layer)
        pieces = (*before, self._own)
        return (
            torch.cat([k for k, _ in pieces], dim=2).float(),
            torch.cat([v for _, v in pieces], dim=2).float(),
        )

    def _mask(self, begin: int, end: int, first_key: int) -> torch.Tensor:
        """Return 0 where a row of [begin, end) sees a key and -inf elsewhere, [T, n]."""
        row_T1 = torch.arange(begin, end)[:, None] + self._num_before
        age_Tn = row_T1 - torch.arange(first_key, self._num_before + end)
        hidden_Tn = (age_Tn < 0) | (age_Tn >= self._window)
        return torch.zeros(age_Tn.shape).masked_fill_(hidden_Tn, -torch.inf)
