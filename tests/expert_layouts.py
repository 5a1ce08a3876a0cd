"""Random choices of experts, memory for their slots, and what must be true of filled ones."""

from __future__ import annotations

import torch

from stage_worker.kernels import reference
from stage_worker.kernels.reference_experts import ExpertSlots, count_slots

STEP = 16
"""Of the contiguous layout; DeepGEMM's is 128."""


def choices(
    num_rows: int, num_chosen: int, num_experts: int, seed: int, *, skew: float = 0.3
) -> torch.Tensor:
    """Return different experts for each row, int64; the first ones are chosen more often."""
    generator = torch.Generator().manual_seed(seed)
    merit_TE = torch.rand(num_rows, num_experts, generator=generator)
    merit_TE[:, :num_chosen] += skew
    return merit_TE.topk(num_chosen).indices


def empty_slots(
    device: torch.device,
    chosen_shape: tuple[int, int],
    num_experts: int,
    *,
    is_fixed: bool,
    step: int = STEP,
) -> ExpertSlots:
    """Return memory that holds other rows' slots; chosen_shape is rows and experts of a row."""
    num_rows, num_chosen = chosen_shape
    if is_fixed:
        step *= -(-num_rows // step)
    num_slots = step * num_experts
    if not is_fixed:
        num_slots = count_slots(num_rows, num_chosen, num_experts, step)
    place_Tk, owner_S, counts_E, next_E = (
        torch.full(shape, 7, dtype=torch.int32, device=device)
        for shape in (chosen_shape, (num_slots,), (num_experts,), (num_experts,))
    )
    return ExpertSlots(
        place_Tk=place_Tk,
        owner_S=owner_S,
        counts_E=counts_E,
        next_E=next_E,
        step=step,
        is_fixed=is_fixed,
    )


def check_assigned(ids_Tk: torch.Tensor, slots: ExpertSlots) -> None:
    """Assert that each row has a slot of each of its experts, alone, where it must be."""
    place_M = slots.place_Tk.flatten().long()
    assert ids_Tk.numel() == len(set(place_M.tolist()))
    assert torch.equal(slots.owner_S[place_M].long(), ids_Tk.flatten())
    assert int((slots.owner_S >= 0).sum()) == ids_Tk.numel()
    num_experts = len(slots.counts_E)
    assert torch.equal(slots.counts_E.long(), ids_Tk.flatten().bincount(minlength=num_experts))
    begin = 0
    for expert, count in enumerate(slots.counts_E.tolist()):
        own = (slots.owner_S == expert).nonzero().flatten()
        assert own.tolist() == list(range(begin, begin + count))
        begin += slots.step if slots.is_fixed else -(-count // slots.step) * slots.step


def dequantised_slots(values_SK: torch.Tensor, scale_BgR: torch.Tensor) -> torch.Tensor:
    """Return what slots stand for, float32; those that nobody wrote are no numbers."""
    return reference.dequantise(values_SK, scale_BgR.transpose(1, 2).flatten(0, 1))
