"""Matrix products of block-scaled FP8 by DeepGEMM. The one module that imports deep_gemm.

The first call of a shape's kernel compiles for seconds.

Shapes: T rows, K inner width, N output width, in blocks of 128.
"""

from __future__ import annotations

import dataclasses

import deep_gemm
import torch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRows:
    """Activations from quantise: float8_e4m3fn [T, K], float32 scales [T, K / 128].

    Scales with contiguous, aligned columns (quantise.empty_scales) are used without a copy.
    """

    values_TK: torch.Tensor
    scale_Tg: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledBlocks:
    """A weight: float8_e4m3fn [N, K], one float32 scale for each 128 x 128 block."""

    values_NK: torch.Tensor
    scale_ng: torch.Tensor


def multiply(x: ScaledRows, weight: ScaledBlocks, out_TN: torch.Tensor) -> None:
    """Write x times the transposed weight to out, bfloat16."""
    deep_gemm.fp8_gemm_nt((x.values_TK, x.scale_Tg), (weight.values_NK, weight.scale_ng), out_TN)
