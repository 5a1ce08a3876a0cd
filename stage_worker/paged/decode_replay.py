"""Decode microbatches as replays on one pool of pages: what is recorded, filled in and read.

A paged stage makes one for each pool that it allocates.
"""

from __future__ import annotations

import numpy as np
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.orders import Microbatch
from stage_worker.paged.decode_graphs import DecodeGraphs, Recorder
from stage_worker.paged.decode_memory import DecodeLimits, DecodeMemory
from stage_worker.paged.decode_step import DecodeStep, PagedModel
from stage_worker.paged.operations import Operations
from stage_worker.paged.plan import PagedPlan
from stage_worker.paged.pool import PagedPool
from stage_worker.paged.upload import Upload


class DecodeReplay:
    """Owner of the replays and of the memory that they read and write."""

    def __init__(
        self,
        model: PagedModel,
        pool: PagedPool,
        most_rows: int,
        operations: Operations,
        recorder: Recorder,
    ) -> None:
        """Record steps of up to most_rows rows; see DecodeGraphs."""
        self._pool = pool
        self._device = operations.device
        limits = DecodeLimits(
            num_rows=most_rows,
            num_pages=pool.shape.num_pages,
            filler_slot=pool.filler_slot,
            hidden_size=model.hidden_size,
            vocab_size=None if model.head is None else model.head.vocab_size,
        )
        self._memory = DecodeMemory(limits, operations.dtype, self._device)
        step = DecodeStep(model, pool.layers, self._memory)
        self._graphs = DecodeGraphs(step, most_rows, operations.scratch, recorder)

    def size_of(self, microbatch: Microbatch) -> int | None:
        """Return the size of the step that computes a microbatch; None if none does."""
        return self._graphs.size_of(microbatch)

    def run(
        self,
        size: int,
        microbatch: Microbatch,
        plan: PagedPlan,
        hidden_in_TD: torch.Tensor | None,
    ) -> None:
        """Launch a microbatch as a step of its size_of; waits for nothing."""
        if plan.unfilled_page_ids.size:
            upload = Upload()
            upload.add(plan.unfilled_page_ids.astype(np.int64))
            [page_ids_n] = upload.send(self._device)
            self._pool.clear(page_ids_n)
        self._memory.fill(plan, microbatch.token_ids, hidden_in_TD)
        self._graphs.replay(size)

    def hidden(self, num_rows: int) -> torch.Tensor:
        """Return the residual stream [num_rows, D] behind the stage, void with the next run."""
        return self._memory.hidden_ND[:num_rows]

    def logits(self, num_rows: int) -> torch.Tensor:
        """Return float32 logits [num_rows, V], void with the next run; last stage only.

        Raises:
            InvariantViolated: the stage has no head.
        """
        if self._memory.logits_NV is None:
            raise InvariantViolated("no logits on a stage without a head")
        return self._memory.logits_NV[:num_rows]

    def chosen(self, num_rows: int) -> torch.Tensor:
        """Return the likeliest ids [num_rows], see greedy; void with the next run."""
        return self._memory.chosen_N[:num_rows]
