"""The final norm and the output head on a device.

Shapes: n rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch

from stage_worker.paged.operations import Operations
from stage_worker.weights import HeadWeights


class PagedHead:
    """Implements readout.LogitsHead; sums are float32 and never rounded to a narrow type."""

    def __init__(self, weights: HeadWeights, eps: float, operations: Operations) -> None:
        self._weights = weights
        self._eps = eps
        self._operations = operations

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._weights.head_DV.shape[1]

    def logits(self, hidden_nD: torch.Tensor) -> torch.Tensor:
        """Return logits [n, V], float32."""
        normed_nD = torch.empty_like(hidden_nD)
        self._operations.fused.add_norm(None, hidden_nD, self._weights.norm_D, self._eps, normed_nD)
        head_DV = self._weights.head_DV
        if normed_nD.device.type == "cuda" and normed_nD.dtype != torch.float32:
            return torch.mm(normed_nD, head_DV, out_dtype=torch.float32)
        return torch.mm(normed_nD.float(), head_DV.float())
