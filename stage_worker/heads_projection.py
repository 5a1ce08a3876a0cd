"""Turns hidden rows into queries, keys and values of separate heads.

Shapes: T rows, D hidden size, J query and kv heads, d head_dim, N all projected columns.
"""

from __future__ import annotations

import torch

from stage_worker.layer_weights import HeadsWeights
from stage_worker.norm import RmsNorm
from stage_worker.products import add_product, multiply
from stage_worker.rope import Rotation, rotate
from stage_worker.step import LastRowsStep, Step
from stage_worker.workspace import Buffers


class HeadsProjection:
    """Holds the projections as one matrix, so that the input is read once."""

    def __init__(self, weights: HeadsWeights, eps: float) -> None:
        self._qkv_DN = weights.qkv_KN
        self._bias_N = weights.qkv_bias_N
        self._norm_Jd = None if weights.qk_norm_Jd is None else RmsNorm(weights.qk_norm_Jd, eps)
        self._o_ND = weights.o_KN

    def project(self, buffers: Buffers, rotation: Rotation) -> None:
        """Fill the buffers' q, k and v from buffers.normed_TD."""
        merged = buffers.merged
        assert merged is not None, "these heads need merged memory"
        if self._bias_N is None:
            multiply(buffers.normed_TD, self._qkv_DN, merged.qkv_TN)
        else:
            merged.qkv_TN.copy_(self._bias_N)
            add_product(merged.qkv_TN, buffers.normed_TD, self._qkv_DN)
        if self._norm_Jd is not None:
            self._norm_Jd(merged.qk.whole_THD, merged.qk.whole_THD)
        rotate(merged.qk, rotation, merged.roped)

    def attend(self, layer: int, step: Step | LastRowsStep) -> None:
        """Attend in one layer (index in the stage), from the step's q to its attended."""
        step.attend(layer)

    def add_to(self, hidden_TD: torch.Tensor, buffers: Buffers) -> None:
        """Add what the heads attended to, mixed, to hidden_TD."""
        add_product(hidden_TD, buffers.attended_TN, self._o_ND)
