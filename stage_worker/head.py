"""The final norm and the output head, for the few rows whose logits are wanted.

Shapes: n rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch

from stage_worker.norm import RmsNorm
from stage_worker.weights import HeadWeights


class Head:
    """Turns hidden rows into logits."""

    def __init__(self, weights: HeadWeights, eps: float) -> None:
        self._norm = RmsNorm(weights.norm_D, eps)
        self._head_DV = weights.head_DV

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._head_DV.shape[1]

    def logits(self, hidden_nD: torch.Tensor) -> torch.Tensor:
        """Return logits [n, V]."""
        normed_nD = torch.empty_like(hidden_nD)
        self._norm(hidden_nD, normed_nD)
        return normed_nD @ self._head_DV
