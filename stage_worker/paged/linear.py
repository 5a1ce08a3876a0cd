"""Products with weights, behind one interface: full width by torch, eight bits by DeepGEMM.

Shapes: T rows, K input and N output width.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import torch

from stage_worker.kernels.reference import GROUP_WIDTH
from stage_worker.paged.row_parts import row_parts
from stage_worker.paged.scratch import Scratch


class Linear(Protocol):
    """A weight."""

    num_outputs: int

    def __call__(self, x_TK: torch.Tensor, out_TN: torch.Tensor) -> None:
        """Write x times the transposed weight, plus the bias if there is one, to out."""
        ...


class FullLinear:
    """A weight of the activations' type."""

    def __init__(self, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> None:
        self.num_outputs = len(weight_NK)
        self._weight_KN = weight_NK.t()
        self._bias_N = bias_N

    def __call__(self, x_TK: torch.Tensor, out_TN: torch.Tensor) -> None:
        """See Linear."""
        if self._bias_N is None:
            torch.mm(x_TK, self._weight_KN, out=out_TN)
        else:
            torch.addmm(self._bias_N, x_TK, self._weight_KN, out=out_TN)


class BlockLinear:
    """A weight in eight bits with one scale for each 128 x 128 block; its input is quantised too.

    K is of whole groups; activations are bfloat16.
    """

    def __init__(
        self,
        values_NK: torch.Tensor,
        scale_ng: torch.Tensor,
        bias_N: torch.Tensor | None,
        scratch: Scratch,
    ) -> None:
        """Take float8_e4m3fn values and float32 scales; scratch is for quantised inputs."""
        self.num_outputs = len(values_NK)
        self._gemm: Any = importlib.import_module("stage_worker.kernels.block_gemm")
        self._quantise: Any = importlib.import_module("stage_worker.kernels.quantise").quantise
        self._weight = self._gemm.ScaledBlocks(values_NK=values_NK, scale_ng=scale_ng)
        self._bias_N = bias_N
        self._scratch = scratch

    def __call__(self, x_TK: torch.Tensor, out_TN: torch.Tensor) -> None:
        """See Linear."""
        for part in row_parts(len(x_TK)):
            self._multiply(x_TK[part], out_TN[part])
        if self._bias_N is not None:
            out_TN.add_(self._bias_N)

    def _multiply(self, x_TK: torch.Tensor, out_TN: torch.Tensor) -> None:
        """Quantise some rows and multiply them; scratch is used again in the stream's order."""
        num_rows, width = x_TK.shape
        values_TK = self._scratch.take("eight-bit rows", (num_rows, width), torch.float8_e4m3fn)
        scale_Tg = self._scales(num_rows, width)
        self._quantise(x_TK, values_TK, scale_Tg)
        rows = self._gemm.ScaledRows(values_TK=values_TK, scale_Tg=scale_Tg)
        self._gemm.multiply(rows, self._weight, out_TN)

    def _scales(self, num_rows: int, width: int) -> torch.Tensor:
        """Return memory for scales as kernels.quantise.empty_scales lays it out."""
        padded = -(-num_rows // 4) * 4
        memory = self._scratch.take("scales", (width // GROUP_WIDTH, padded), torch.float32)
        return memory.t()[:num_rows]
