"""The gated feed-forward block: down(silu(gate(x)) * up(x)).

Shapes: T rows, D hidden size, I intermediate size.
Source: https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

import torch

from stage_worker.layer_weights import GatedWeights
from stage_worker.products import add_product, multiply
from stage_worker.workspace import Buffers


class GatedMlp:
    """Holds gate and up as one matrix, so that the input is read once."""

    def __init__(self, weights: GatedWeights) -> None:
        self._gate_up_DI = weights.gate_up_KN
        self._down_ID = weights.down_KN

    def add_to(self, hidden_TD: torch.Tensor, buffers: Buffers) -> None:
        """Add the block's output for buffers.normed_TD to hidden_TD."""
        multiply(buffers.normed_TD, self._gate_up_DI, buffers.gate_up_TI)
        torch.ops.aten.silu.out(buffers.gate_TI, out=buffers.inner_TI)
        buffers.inner_TI.mul_(buffers.up_TI)
        add_product(hidden_TD, buffers.inner_TI, self._down_ID)
