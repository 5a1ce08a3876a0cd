"""A feed-forward block of many experts, of which each token uses a few.

Rows are sorted by expert, so that every expert that has any multiplies all of its rows at once.

Shapes: T rows, D hidden size, k experts of one token, n rows of one expert.
Source: https://arxiv.org/abs/1701.06538
"""

from __future__ import annotations

import torch

from stage_worker.experts_config import ExpertsConfig
from stage_worker.layer_weights import ExpertsWeights, GatedWeights
from stage_worker.products import product
from stage_worker.router import Router
from stage_worker.workspace import Buffers


class Experts:
    """Adds the weighted outputs of each row's experts, and of the block that all rows use."""

    def __init__(self, weights: ExpertsWeights, config: ExpertsConfig) -> None:
        self._router = Router(weights.router_DE, weights.correction_E, config)
        self._shared = weights.shared
        self._experts = weights.experts

    def add_to(self, hidden_TD: torch.Tensor, buffers: Buffers) -> None:
        """Add the block's output for buffers.normed_TD to hidden_TD."""
        x_TD = buffers.normed_TD
        ids_Tk, weights_Tk = self._router(x_TD)
        order = ids_Tk.flatten().argsort(stable=True)
        row_of = order // ids_Tk.shape[1]
        weight_of = weights_Tk.flatten()[order, None]
        counts = torch.bincount(ids_Tk.flatten(), minlength=len(self._experts)).tolist()
        total_TD = hidden_TD  # narrow rows are rounded once, not by every expert
        if hidden_TD.dtype != torch.float32:
            total_TD = hidden_TD.float()
        if self._shared is not None:
            total_TD.add_(gated(x_TD, self._shared))
        begin = 0
        for expert, num_rows in zip(self._experts, counts, strict=True):
            if num_rows == 0:
                continue
            rows = slice(begin, begin + num_rows)
            out_nD = gated(x_TD[row_of[rows]], expert) * weight_of[rows]
            total_TD.index_add_(0, row_of[rows], out_nD)
            begin += num_rows
        if total_TD is not hidden_TD:
            hidden_TD.copy_(total_TD)


def gated(x_nD: torch.Tensor, weights: GatedWeights) -> torch.Tensor:
    """Return the gated block's output for a few rows, in fresh memory."""
    gate_nI, up_nI = product(x_nD, weights.gate_up_KN).chunk(2, dim=-1)
    return product(torch.nn.functional.silu(gate_nI).mul_(up_nI), weights.down_KN)
