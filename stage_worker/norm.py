"""RMS normalisation.

Shapes: T rows, D width.
Source: https://arxiv.org/abs/1910.07467
"""

from __future__ import annotations

import torch


class RmsNorm:
    """Normalises rows to unit root mean square, then scales columns.

    Written out in five cheap calls: at one row torch.rms_norm costs twice as much, all of it
    dispatch. Narrow rows are normalised in float32, rounded, and then scaled.
    """

    def __init__(self, weight_D: torch.Tensor, eps: float) -> None:
        self._weight_D = weight_D
        self._eps = torch.full((1, 1), eps, dtype=torch.float32)

    def __call__(self, x_TD: torch.Tensor, out_TD: torch.Tensor) -> None:
        """Write the normalised rows to out_TD."""
        norm_T1 = torch.linalg.vector_norm(x_TD, 2, -1, keepdim=True, dtype=torch.float32)
        scale_T1 = torch.addcmul(self._eps, norm_T1, norm_T1, value=1.0 / x_TD.shape[-1]).rsqrt_()
        torch.mul(x_TD, scale_T1, out=out_TD)
        out_TD.mul_(self._weight_D)
