"""The layout of experts' rows, and what is computed around their products, by definition."""

from __future__ import annotations

import importlib
import types

import pytest
import torch

from stage_worker.kernels import reference_experts
from stage_worker.kernels.reference import GROUP_WIDTH
from stage_worker.kernels.reference_experts import ExpertSlots, count_slots
from tests.expert_layouts import check_assigned, choices, dequantised_slots, empty_slots
from tests.kernel_inputs import Dice, distance

pytestmark = pytest.mark.gpu

EIGHT_BITS = 0.04
"""Rounding to eight bits moves a random number by 2.6e-2 on average."""
CUT = 0.08
"""Triton's interpreter cuts to eight bits where a GPU rounds."""


@pytest.fixture
def dice(triton_device: torch.device) -> Dice:
    """Return the source of a test's inputs."""
    return Dice(triton_device)


@pytest.fixture
def kernels(triton_device: torch.device) -> types.ModuleType:
    """Return the kernels under test."""
    assert triton_device is not None
    return importlib.import_module("stage_worker.kernels.expert_slots")


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize(
    ("num_rows", "num_chosen", "num_experts"), [(1, 2, 8), (7, 8, 8), (60, 3, 160), (300, 8, 12)]
)
def test_every_row_gets_slots_of_its_experts(
    dice: Dice,
    kernels: types.ModuleType,
    num_rows: int,
    num_chosen: int,
    num_experts: int,
    is_fixed: bool,
) -> None:
    """No two rows share a slot, and memory of an earlier microbatch does not shine through."""
    slots = empty_slots(dice.device, (num_rows, num_chosen), num_experts, is_fixed=is_fixed)
    for seed in range(2):
        ids_Tk = choices(num_rows, num_chosen, num_experts, seed).to(dice.device)
        kernels.assign(ids_Tk, slots)
        check_assigned(ids_Tk, slots)


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize("width", [128, 384, 2304])
def test_spread(dice: Dice, kernels: types.ModuleType, width: int, is_fixed: bool) -> None:
    """Each of a row's slots holds the row in eight bits, with its scales where DeepGEMM looks."""
    slots = _assigned(dice, is_fixed=is_fixed)
    x_TK = dice.normal(len(slots.place_Tk), width)
    values_SK, scale_BgR = _quantised(slots, width)
    kernels.spread(x_TK, slots, values_SK, scale_BgR)
    found_SK = dequantised_slots(values_SK, scale_BgR)
    for place_T in slots.place_Tk.long().T:
        assert distance(found_SK[place_T], x_TK) < _tolerance(dice)


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize("width", [128, 768])
def test_gated_silu(dice: Dice, kernels: types.ModuleType, width: int, is_fixed: bool) -> None:
    """Slots that a row has are gated and quantised; whatever lies in the others does not matter."""
    slots = _assigned(dice, is_fixed=is_fixed)
    gate_up_SI = dice.normal(len(slots.owner_S), 2 * width)
    gate_up_SI[slots.owner_S < 0] = float("nan")
    values_SI, scale_BgR = _quantised(slots, width)
    kernels.gated_silu(gate_up_SI, slots, values_SI, scale_BgR)
    used_n = slots.owner_S >= 0
    gate_nI, up_nI = gate_up_SI[used_n].float().chunk(2, dim=-1)
    right_nI = torch.nn.functional.silu(gate_nI) * up_nI
    found_nI = dequantised_slots(values_SI, scale_BgR)[used_n]
    assert distance(found_nI, right_nI) < _tolerance(dice)


@pytest.mark.parametrize("adds", [True, False])
def test_combine(dice: Dice, kernels: types.ModuleType, adds: bool) -> None:
    """A row is the weighted sum of its slots, and of what all rows use besides."""
    slots = _assigned(dice, is_fixed=False)
    out_SD = dice.normal(len(slots.owner_S), 1500)
    out_SD[slots.owner_S < 0] = float("nan")
    weights_Tk = dice.normal(*slots.place_Tk.shape).float()
    total_TD = dice.normal(len(slots.place_Tk), 1500)
    if not adds:
        total_TD.fill_(float("nan"))
    right_TD = total_TD.double()
    kernels.combine(out_SD, slots, weights_Tk, total_TD, adds=adds)
    reference_experts.combine(out_SD, slots, weights_Tk, right_TD, adds=adds)
    assert distance(total_TD, right_TD) < 3e-3


def _assigned(dice: Dice, *, is_fixed: bool) -> ExpertSlots:
    """Return slots that the definition filled."""
    slots = empty_slots(dice.device, (9, 3), 5, is_fixed=is_fixed)
    reference_experts.assign(choices(9, 3, 5, 0).to(dice.device), slots)
    return slots


def _quantised(slots: ExpertSlots, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return poisoned memory for slots of a width and their scales."""
    device, num_slots = slots.owner_S.device, len(slots.owner_S)
    values = torch.full((num_slots, width), 127, dtype=torch.uint8, device=device)
    num_blocks, block_slots = slots.block_shape
    shape = (num_blocks, width // GROUP_WIDTH, block_slots)
    return values.view(torch.float8_e4m3fn), torch.full(shape, float("nan"), device=device)


def _tolerance(dice: Dice) -> float:
    return CUT if dice.device.type == "cpu" else EIGHT_BITS


def test_slots_suffice_whatever_is_chosen() -> None:
    """One row for every expert is the worst that can happen to the contiguous layout."""
    assert count_slots(1, 8, 128, 128) == 8 * 128
    assert count_slots(4096, 8, 128, 128) == 4096 * 8 + 127 * 128
