"""A decode step from token ids, or from what the stage before computed, to chosen ids.

It does what a stage does with any microbatch, but between addresses that stay, so that it can be
captured; which memory that is, and how it is filled, see decode_memory.

Shapes: B rows, D hidden size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from stage_worker.kernels.reference import PagedKeysValues
from stage_worker.paged.decode_memory import DecodeMemory
from stage_worker.paged.decoder import DecoderLayer, run_layers
from stage_worker.paged.greedy import likeliest_ids
from stage_worker.paged.head import PagedHead
from stage_worker.paged.placed import PagedRope, Placed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PagedModel:
    """The part of a model that a stage has."""

    embedding_VD: torch.Tensor | None
    """First stage only."""
    layers: Sequence[DecoderLayer]
    head: PagedHead | None
    """Last stage only."""
    rope: PagedRope
    hidden_size: int


class DecodeStep:
    """Computes the step of so many rows; implements decode_graphs.Step."""

    def __init__(
        self, model: PagedModel, caches: Sequence[PagedKeysValues], memory: DecodeMemory
    ) -> None:
        self._model = model
        self._caches = caches
        self._memory = memory

    def __call__(self, size: int) -> None:
        """Compute, from the memory to the memory."""
        model, memory = self._model, self._memory
        hidden_BD = memory.hidden_ND[:size]
        if model.embedding_VD is None:
            hidden_BD.copy_(memory.entered_ND[:size])
        else:
            ids_B = memory.token_ids_N[:size]
            torch.index_select(model.embedding_VD, 0, ids_B, out=hidden_BD)
        placed = Placed(
            angles=model.rope.angles(memory.positions_N[:size]),
            slots_T=memory.slots(size),
            runs=(memory.sequences(size),),
            token_ids_T=None,
            unfilled_page_ids=None,
            last=None,
        )
        run_layers(model.layers, self._caches, hidden_BD, placed)
        if model.head is not None and memory.logits_NV is not None:
            logits_BV = memory.logits_NV[:size]
            logits_BV.copy_(model.head.logits(hidden_BD))
            memory.chosen_N[:size].copy_(likeliest_ids(logits_BV))
