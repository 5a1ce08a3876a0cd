"""Everything that the layers share while they run one microbatch.

Built once per microbatch, so that the layers themselves do no index arithmetic.

Shapes: T rows, K kv heads, n tokens of a run, d head_dim.
"""

from __future__ import annotations

import torch

from stage_worker.attention import ChunkQueries, TokenQueries
from stage_worker.batch import BatchPlan, Part
from stage_worker.expanded_attention import ExpandedQueries
from stage_worker.kv_pool import KeysValues, KvPool
from stage_worker.latent_config import LatentConfig
from stage_worker.latent_form import is_expanded
from stage_worker.rope import Rope
from stage_worker.window_attention import WindowQueries
from stage_worker.workspace import Buffers

Queries = TokenQueries | ChunkQueries | WindowQueries


class Step:
    """One pass over all rows of a microbatch."""

    def __init__(
        self,
        plan: BatchPlan,
        buffers: Buffers,
        rope: Rope,
        pool: KvPool,
        latent: LatentConfig | None,
    ) -> None:
        """Prepare; latent is None where keys are not."""
        self.buffers = buffers
        expanded = tuple(part for part in plan.parts if latent and _is_expanded(part, latent))
        direct = tuple(part for part in plan.parts if part not in expanded)
        self.expanded = tuple(_expanded_queries(part, buffers, pool) for part in expanded)
        """Those that need a layer's weights to attend; attend() leaves them out."""
        self.absorbed_rows = _joined_rows(direct)
        """The rows of all others."""
        self.rotation = rope.rotation(torch.from_numpy(plan.positions_T))
        self._windows = pool.windows
        self._queries = {
            window: [_queries(part, window, buffers, pool) for part in direct]
            for window in set(pool.windows)
        }
        self._writes = [write for part in plan.parts for write in _writes(part, buffers, pool)]

    def write_kv(self, layer: int) -> None:
        """Copy the rows' keys and values into the pool, one layer (index in the stage)."""
        for (k_1Knd, v_1Knd), layers in self._writes:
            k_slots, v_slots = layers[layer]
            k_slots.copy_(k_1Knd)
            if v_slots is not k_slots:
                v_slots.copy_(v_1Knd)

    def attend(self, layer: int) -> None:
        """Fill buffers.attended_THd for one layer (index in the stage), but not expanded rows."""
        for queries in self._queries[self._windows[layer]]:
            queries.attend(layer)


class LastRowsStep:
    """The rest of the last layer for the last tokens of some entries only.

    Nobody reads the other rows: their keys and values are written, the head samples none of them.
    """

    def __init__(self, parts: tuple[Part, ...], buffers: Buffers, pool: KvPool) -> None:
        self.buffers = buffers
        self.expanded: tuple[ExpandedQueries, ...] = ()
        self.absorbed_rows = (slice(0, len(parts)),)
        self._rows = torch.tensor([part.last_row for part in parts], dtype=torch.int64)
        window = pool.windows[-1]
        self._queries = [
            _token_queries(row, part, window, buffers, pool) for row, part in enumerate(parts)
        ]

    def take_rows(self, step: Step, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Move the rows' queries from step's buffers to this one's; return their hidden rows."""
        source, target = step.buffers, self.buffers
        pairs = [(source.q_THd, target.q_THd)]
        if source.latent is not None and target.latent is not None:
            pairs.append((source.latent.query_TN, target.latent.query_TN))
        for rows_TN, taken_nN in pairs:
            taken_nN.copy_(rows_TN.index_select(0, self._rows))  # a copy: the buffers overlap
        return hidden_TD.index_select(0, self._rows)

    def attend(self, layer: int) -> None:
        """Fill buffers.attended_THd for one layer (index in the stage)."""
        for queries in self._queries:
            queries.attend(layer)


def _is_expanded(part: Part, latent: LatentConfig) -> bool:
    num_before = 0 if part.context is None else part.context.num_tokens
    return part.num_rows > 1 and is_expanded(latent, part.num_rows, num_before)


def _expanded_queries(part: Part, buffers: Buffers, pool: KvPool) -> ExpandedQueries:
    assert buffers.latent is not None, "latent keys need memory of their own"
    return ExpandedQueries(part, buffers, buffers.latent, pool)


def _joined_rows(parts: tuple[Part, ...]) -> tuple[slice, ...]:
    """Return the rows of parts, neighbours together."""
    joined: list[slice] = []
    for part in parts:
        begin, end = part.first_row, part.first_row + part.num_rows
        if joined and joined[-1].stop == begin:
            begin = joined.pop().start
        joined.append(slice(begin, end))
    return tuple(joined)


def _queries(part: Part, window: int | None, buffers: Buffers, pool: KvPool) -> Queries:
    if part.num_rows == 1:
        return _token_queries(part.first_row, part, window, buffers, pool)
    if window is None or window >= part.through.num_tokens:
        return ChunkQueries(part, buffers, pool)
    return WindowQueries(part, window, buffers, pool)


def _token_queries(
    row: int, part: Part, window: int | None, buffers: Buffers, pool: KvPool
) -> TokenQueries:
    context = part.through
    if window is not None:
        context = context.tail(window, pool.shape.page_tokens)
    return TokenQueries(row, context, buffers, pool)


def _writes(
    part: Part, buffers: Buffers, pool: KvPool
) -> list[tuple[KeysValues, tuple[KeysValues, ...]]]:
    """Pair the rows of a part with the slots that they go to, run by run."""
    writes = []
    row = part.first_row
    for run in part.written:
        rows = slice(row, row + run.num_tokens)
        source = (buffers.k_1KTd[:, :, rows], buffers.v_1KTd[:, :, rows])
        writes.append((source, pool.views(run)))
        row += run.num_tokens
    return writes
