"""What stage_worker.kernels.block_gemm computes, by definition and on any device; stands in for it.

Shapes: T rows, K inner width, N output width, E experts, S slots of rows, B blocks of R slots.
"""

from __future__ import annotations

import dataclasses

import torch

from stage_worker.kernels import reference, weight_blocks
from tests.expert_layouts import dequantised_slots


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRows:
    """Rows."""

    values_TK: torch.Tensor
    scale_Tg: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledBlocks:
    """A weight."""

    values_NK: torch.Tensor
    scale_ng: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSlots:
    """Slots of rows."""

    values_SK: torch.Tensor
    scale_BgR: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledExperts:
    """The weights of experts."""

    values_ENK: torch.Tensor
    scale_Eng: torch.Tensor


def multiply(x: ScaledRows, weight: ScaledBlocks, out_TN: torch.Tensor) -> None:
    """Multiply rows with a transposed weight."""
    x_TK = reference.dequantise(x.values_TK, x.scale_Tg)
    weight_NK = weight_blocks.dequantise_blocks(weight.values_NK, weight.scale_ng)
    out_TN.copy_(x_TK @ weight_NK.T)


def contiguous_step() -> int:
    """Return DeepGEMM's on Hopper."""
    return 128


def wave_slots() -> int:
    """Return what a GPU of three multiprocessors would want."""
    return 3 * contiguous_step()


def multiply_contiguous(
    x: ScaledSlots, weight: ScaledExperts, owner_S: torch.Tensor, out_SN: torch.Tensor
) -> None:
    """Multiply slots with their owners' weights, as far as they have one."""
    x_SK = dequantised_slots(x.values_SK, x.scale_BgR)
    out_SN.fill_(float("nan"))
    for block in owner_S.view(-1, contiguous_step()):
        assert len({owner for owner in block.tolist() if owner >= 0}) <= 1
    for expert in range(len(weight.values_ENK)):
        own = owner_S == expert
        out_SN[own] = (x_SK[own] @ _weight(weight, expert).T).to(out_SN.dtype)


def multiply_fixed(
    x: ScaledSlots, weight: ScaledExperts, counts_E: torch.Tensor, out_SN: torch.Tensor
) -> None:
    """Multiply the first slots of each expert."""
    num_experts = len(counts_E)
    x_SK = dequantised_slots(x.values_SK, x.scale_BgR)
    x_ERK = x_SK.view(num_experts, -1, x_SK.shape[1])
    out_SN.fill_(float("nan"))
    out_ERN = out_SN.view(num_experts, -1, out_SN.shape[1])
    for expert, count in enumerate(counts_E.tolist()):
        product = x_ERK[expert, :count] @ _weight(weight, expert).T
        out_ERN[expert, :count] = product.to(out_SN.dtype)


def _weight(weight: ScaledExperts, expert: int) -> torch.Tensor:
    return weight_blocks.dequantise_blocks(weight.values_ENK[expert], weight.scale_Eng[expert])
