"""What the kernels around grouped products of experts compute, in plain torch on any device.

A grouped product multiplies each slot with the weight of the expert that owns it. Two layouts of
slots are known. Contiguous: an expert's slots begin behind those of the expert before, at a
multiple of a step; for many rows. Fixed: every expert has as many slots as there are rows at most;
for few.

Shapes: T rows, k experts of a row, E experts, S slots, K input width, I half of the gated width,
D output width, g groups of GROUP_WIDTH columns, B blocks of R slots whose scales lie together.
"""

from __future__ import annotations

import dataclasses

import torch

from stage_worker.kernels.reference import GROUP_WIDTH, quantise


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlots:
    """Memory for who has which slot; int32, contiguous."""

    place_Tk: torch.Tensor
    """The slot of each row and expert."""
    owner_S: torch.Tensor
    """The expert of each slot; -1 where no row has it."""
    counts_E: torch.Tensor
    """Rows of each expert."""
    next_E: torch.Tensor
    """Scratch."""
    step: int
    """What an expert's first slot is a multiple of; if is_fixed, how many slots it has."""
    is_fixed: bool

    @property
    def block_shape(self) -> tuple[int, int]:
        """B and R; the first slot of block b is b * R."""
        num_slots = len(self.owner_S)
        return (num_slots // self.step, self.step) if self.is_fixed else (1, num_slots)


def count_slots(num_rows: int, num_chosen: int, num_experts: int, step: int) -> int:
    """Return how many slots the contiguous layout needs at most, a multiple of step."""
    num_entries = num_rows * num_chosen
    num_used = min(num_experts, num_entries)
    return (num_entries + num_used * (step - 1)) // step * step


def assign(ids_Tk: torch.Tensor, slots: ExpertSlots) -> None:
    """Fill slots for rows that chose these experts, each of them once; ids are int64."""
    ids_M = ids_Tk.flatten()
    num_experts = len(slots.counts_E)
    counts_E = torch.zeros_like(slots.counts_E)
    counts_E.index_add_(0, ids_M, torch.ones_like(ids_M, dtype=torch.int32))
    if slots.is_fixed:
        begins_E = torch.arange(num_experts, device=ids_Tk.device) * slots.step
    else:
        padded_E = (counts_E + slots.step - 1) // slots.step * slots.step
        begins_E = padded_E.cumsum(0) - padded_E
    order_M = ids_M.argsort(stable=True)
    sorted_M = ids_M[order_M]
    rank_M = torch.arange(len(ids_M), device=ids_Tk.device)
    rank_M -= (counts_E.cumsum(0) - counts_E)[sorted_M]
    slots_M = (begins_E[sorted_M] + rank_M).to(torch.int32)
    slots.counts_E.copy_(counts_E)
    slots.place_Tk.view(-1)[order_M] = slots_M
    slots.owner_S.fill_(-1)
    slots.owner_S[slots_M.long()] = sorted_M.to(torch.int32)


def spread(
    x_TK: torch.Tensor, slots: ExpertSlots, values_SK: torch.Tensor, scale_BgR: torch.Tensor
) -> None:
    """Write each row, quantised, to its slots; others keep what they hold."""
    num_rows, num_chosen = slots.place_Tk.shape
    rows_M = torch.arange(num_rows, device=x_TK.device).repeat_interleave(num_chosen)
    _quantise_to(x_TK[rows_M], slots.place_Tk.flatten().long(), values_SK, scale_BgR)


def gated_silu(
    gate_up_SI: torch.Tensor, slots: ExpertSlots, values_SI: torch.Tensor, scale_BgR: torch.Tensor
) -> None:
    """Write silu(first half of the columns) * second half, quantised, where a row has the slot."""
    used_n = (slots.owner_S >= 0).nonzero().flatten()
    gate_nI, up_nI = gate_up_SI[used_n].float().chunk(2, dim=-1)
    inner_nI = torch.nn.functional.silu(gate_nI) * up_nI
    _quantise_to(inner_nI, used_n, values_SI, scale_BgR)


def combine(
    out_SD: torch.Tensor,
    slots: ExpertSlots,
    weights_Tk: torch.Tensor,
    total_TD: torch.Tensor,
    *,
    adds: bool,
) -> None:
    """Write each row's weighted sum over its experts to total, or add it; sums are float32."""
    out_TkD = out_SD[slots.place_Tk.long()].float()
    sum_TD = torch.einsum("tkd,tk->td", out_TkD, weights_Tk)
    total_TD.copy_(total_TD + sum_TD if adds else sum_TD)


def _quantise_to(
    x_nK: torch.Tensor, slots_n: torch.Tensor, values_SK: torch.Tensor, scale_BgR: torch.Tensor
) -> None:
    """Quantise rows into slots."""
    values_nK = torch.empty_like(x_nK, dtype=values_SK.dtype)
    scale_ng = torch.empty(len(x_nK), x_nK.shape[1] // GROUP_WIDTH, device=x_nK.device)
    quantise(x_nK, values_nK, scale_ng)
    # Eight-bit floats are no type of index_put.
    values_SK.view(torch.uint8)[slots_n] = values_nK.view(torch.uint8)
    num_slots = scale_BgR.shape[2]
    scale_BgR[slots_n // num_slots, :, slots_n % num_slots] = scale_ng
