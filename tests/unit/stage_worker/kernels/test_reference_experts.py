"""The definition of experts' slots against the plain loop over experts."""

from __future__ import annotations

import pytest
import torch

from stage_worker.kernels import reference_experts
from stage_worker.kernels.reference import GROUP_WIDTH
from tests.expert_layouts import check_assigned, choices, dequantised_slots, empty_slots

CPU = torch.device("cpu")


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize(
    ("num_rows", "num_chosen", "num_experts"), [(1, 2, 8), (7, 8, 8), (60, 3, 160), (300, 8, 12)]
)
def test_every_row_gets_slots_of_its_experts(
    num_rows: int, num_chosen: int, num_experts: int, is_fixed: bool
) -> None:
    """No two rows share a slot, and all slots fit into memory that is reserved by shape alone."""
    slots = empty_slots(CPU, (num_rows, num_chosen), num_experts, is_fixed=is_fixed)
    ids_Tk = choices(num_rows, num_chosen, num_experts, 0)
    reference_experts.assign(ids_Tk, slots)
    check_assigned(ids_Tk, slots)


@pytest.mark.parametrize("is_fixed", [True, False])
def test_slots_compute_what_a_loop_over_experts_computes(is_fixed: bool) -> None:
    """Spreading, multiplying by owner, gating and combining is the sum over each row's experts."""
    generator = torch.Generator().manual_seed(1)
    num_rows, num_chosen, num_experts, width, inner = 21, 3, 7, 256, 128
    ids_Tk = choices(num_rows, num_chosen, num_experts, 2)
    x_TK, weights_Tk, gate_up_EKI, down_EID = (
        torch.randn(*shape, generator=generator)
        for shape in (
            (num_rows, width),
            (num_rows, num_chosen),
            (num_experts, width, 2 * inner),
            (num_experts, inner, 40),
        )
    )
    gate_up_EKI /= width**0.5
    slots = empty_slots(CPU, (num_rows, num_chosen), num_experts, is_fixed=is_fixed)
    reference_experts.assign(ids_Tk, slots)
    owners_S = slots.owner_S.clamp(min=0).long()
    num_blocks, block_slots = slots.block_shape

    def memory(columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        scale_shape = (num_blocks, columns // GROUP_WIDTH, block_slots)
        values = torch.zeros(len(owners_S), columns, dtype=torch.float8_e4m3fn)
        return values, torch.zeros(scale_shape)

    rows_SK, inner_SI = memory(width), memory(inner)
    reference_experts.spread(x_TK, slots, *rows_SK)
    gate_up_SI = torch.einsum("sk,ski->si", dequantised_slots(*rows_SK), gate_up_EKI[owners_S])
    reference_experts.gated_silu(gate_up_SI, slots, *inner_SI)
    out_SD = torch.einsum("si,sid->sd", dequantised_slots(*inner_SI), down_EID[owners_S])
    total_TD = torch.full((num_rows, 40), float("nan"))
    reference_experts.combine(out_SD, slots, weights_Tk, total_TD, adds=False)

    right_TD = torch.zeros_like(total_TD)
    for row in range(num_rows):
        for expert, weight in zip(ids_Tk[row], weights_Tk[row], strict=True):
            gate, up = (x_TK[row] @ gate_up_EKI[expert]).chunk(2)
            right_TD[row] += weight * (torch.nn.functional.silu(gate) * up) @ down_EID[expert]
    assert (total_TD - right_TD).norm() / right_TD.norm() < 0.06
