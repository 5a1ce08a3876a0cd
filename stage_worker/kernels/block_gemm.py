"""Matrix products of block-scaled FP8 by DeepGEMM. The one module that imports deep_gemm.

The first call of a shape's kernel compiles for seconds.

Shapes: T rows, K inner width, N output width, in blocks of 128; E experts, S slots of rows, B
blocks of R slots.
"""

from __future__ import annotations

import dataclasses
import math

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSlots:
    """Activations of experts: float8_e4m3fn [S, K], float32 scales; see reference_experts."""

    values_SK: torch.Tensor
    scale_BgR: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledExperts:
    """The same matrix of all experts: float8_e4m3fn values, float32 scales."""

    values_ENK: torch.Tensor
    scale_Eng: torch.Tensor


def contiguous_step() -> int:
    """Return what the first slot of an expert must be a multiple of."""
    return int(deep_gemm.get_mk_alignment_for_contiguous_layout())


def wave_slots() -> int:
    """Return what the number of slots should be a multiple of, itself one of contiguous_step.

    Tiles are then whole waves of multiprocessors for widths that are multiples of 512, and products
    of many numbers of slots share a kernel. Blocks without owner are skipped.
    """
    num_sms = int(deep_gemm.get_num_sms())
    return contiguous_step() * (num_sms // math.gcd(num_sms, 4))


def multiply_contiguous(
    x: ScaledSlots, weight: ScaledExperts, owner_S: torch.Tensor, out_SN: torch.Tensor
) -> None:
    """Multiply slots with their owners' transposed weights; slots without owner become anything."""
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
        (x.values_SK, x.scale_BgR[0].t()),
        (weight.values_ENK, weight.scale_Eng),
        out_SN,
        owner_S,
    )


def multiply_fixed(
    x: ScaledSlots, weight: ScaledExperts, counts_E: torch.Tensor, out_SN: torch.Tensor
) -> None:
    """Multiply the first slots of each expert; the others become anything, or stay."""
    num_experts, width, inner = weight.values_ENK.shape
    _multiply_masked(
        (x.values_SK.view(num_experts, -1, inner), x.scale_BgR.transpose(1, 2)),
        (weight.values_ENK, weight.scale_Eng),
        out_SN.view(num_experts, -1, width),
        counts_E,
        _EXPECTED_ROWS,
    )


_EXPECTED_ROWS = 16
"""Of an expert, by which DeepGEMM chooses its tiles; one number, so that one kernel is compiled."""
# Releases of sgl-deep-gemm call it one way or the other.
_multiply_masked = getattr(deep_gemm, "m_grouped_fp8_gemm_nt_masked", None) or (
    deep_gemm.fp8_m_grouped_gemm_nt_masked
)
