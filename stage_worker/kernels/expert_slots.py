"""Lays rows out by expert for grouped products, and puts their results together, in Triton.

Every row goes to one slot for each of its experts; the slots of an expert lie behind one another.
Shapes depend on the number of rows only, and how many an expert has is known on the device only,
so nothing waits for it. Which slot of its expert a row gets differs from run to run; what becomes
of the row does not.

Shapes: T rows, k experts of a row, E experts, S slots, K input width, I half of the gated width,
D output width, g groups of 128 columns, B blocks of R slots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch
from stage_worker.kernels.reference import FP8_MAX, GROUP_WIDTH, LEAST_SCALE
from stage_worker.kernels.reference_experts import ExpertSlots

_ENTRIES = 1024
_COLUMNS = 1024
_MOST_GROUPS = 16
"""Groups of a row that a program treats."""
_SCALING = {"WIDTH": GROUP_WIDTH, "LIMIT": FP8_MAX, "LEAST": LEAST_SCALE}


def assign(ids_Tk: torch.Tensor, slots: ExpertSlots) -> None:
    """Do what reference_experts.assign does, but for the order of an expert's rows."""
    num_entries, num_slots = ids_Tk.numel(), len(slots.owner_S)
    num_experts = len(slots.counts_E)
    slots.counts_E.zero_()
    _launch_count(
        (triton.cdiv(max(num_entries, num_slots), _ENTRIES), 1, 1),
        (ids_Tk, slots.owner_S, slots.counts_E, num_entries, num_slots),
        {"ENTRIES": _ENTRIES},
        num_warps=4,
    )
    _launch_begin(
        (1, 1, 1),
        (slots.counts_E, slots.next_E),
        {
            "NUM_EXPERTS": num_experts,
            "EXPERTS": triton.next_power_of_2(num_experts),
            "STEP": slots.step,
            "IS_FIXED": slots.is_fixed,
        },
        num_warps=4,
    )
    _launch_place(
        (triton.cdiv(num_entries, _ENTRIES), 1, 1),
        (ids_Tk, slots.next_E, slots.place_Tk, slots.owner_S, num_entries),
        {"ENTRIES": _ENTRIES},
        num_warps=4,
    )


def spread(
    x_TK: torch.Tensor, slots: ExpertSlots, values_SK: torch.Tensor, scale_BgR: torch.Tensor
) -> None:
    """Do what reference_experts.spread does; tensors are contiguous."""
    num_rows, width = x_TK.shape
    num_groups = width // GROUP_WIDTH
    groups = min(triton.next_power_of_2(num_groups), _MOST_GROUPS)
    _launch_spread(
        (num_rows, triton.cdiv(num_groups, groups), 1),
        (x_TK, slots.place_Tk, values_SK, scale_BgR, scale_BgR.shape[2]),
        {"NUM_GROUPS": num_groups, "CHOSEN": slots.place_Tk.shape[1], "GROUPS": groups, **_SCALING},
        num_warps=4,
    )


def gated_silu(
    gate_up_SI: torch.Tensor, slots: ExpertSlots, values_SI: torch.Tensor, scale_BgR: torch.Tensor
) -> None:
    """Do what reference_experts.gated_silu does; tensors are contiguous."""
    num_slots, width = values_SI.shape
    num_groups = width // GROUP_WIDTH
    groups = min(triton.next_power_of_2(num_groups), _MOST_GROUPS)
    _launch_gated(
        (num_slots, triton.cdiv(num_groups, groups), 1),
        (gate_up_SI, slots.owner_S, values_SI, scale_BgR, scale_BgR.shape[2]),
        {"NUM_GROUPS": num_groups, "GROUPS": groups, **_SCALING},
        num_warps=4,
    )


def combine(
    out_SD: torch.Tensor,
    slots: ExpertSlots,
    weights_Tk: torch.Tensor,
    total_TD: torch.Tensor,
    *,
    adds: bool,
) -> None:
    """Do what reference_experts.combine does; tensors are contiguous."""
    num_rows, width = total_TD.shape
    _launch_combine(
        (num_rows, triton.cdiv(width, _COLUMNS), 1),
        (out_SD, slots.place_Tk, weights_Tk, total_TD),
        {
            "ADDS": adds,
            "CHOSEN": weights_Tk.shape[1],
            "WIDTH": width,
            "COLUMNS": _COLUMNS,
        },
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_entries", "num_slots"])
def _count(ids_ptr, owner_ptr, counts_ptr, num_entries, num_slots, ENTRIES: tl.constexpr) -> None:
    """Empty the slots and count each expert's rows."""
    at = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    tl.store(owner_ptr + at, tl.full((ENTRIES,), -1, tl.int32), mask=at < num_slots)
    inside = at < num_entries
    expert = tl.load(ids_ptr + at, mask=inside, other=0)
    tl.atomic_add(counts_ptr + expert, 1, mask=inside, sem="relaxed")


@triton.jit
def _begin(
    counts_ptr,
    next_ptr,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    STEP: tl.constexpr,
    IS_FIXED: tl.constexpr,
) -> None:
    """Write each expert's first slot."""
    expert = tl.arange(0, EXPERTS)
    inside = expert < NUM_EXPERTS
    if IS_FIXED:
        begin = expert * STEP
    else:
        count = tl.load(counts_ptr + expert, mask=inside, other=0)
        padded = (count + STEP - 1) // STEP * STEP
        begin = tl.cumsum(padded, 0) - padded
    tl.store(next_ptr + expert, begin, mask=inside)


@triton.jit(do_not_specialize=["num_entries"])
def _place(ids_ptr, next_ptr, place_ptr, owner_ptr, num_entries, ENTRIES: tl.constexpr) -> None:
    """Give each row and expert the expert's next slot."""
    at = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = at < num_entries
    expert = tl.load(ids_ptr + at, mask=inside, other=0)
    slot = tl.atomic_add(next_ptr + expert, 1, mask=inside, sem="relaxed")
    tl.store(place_ptr + at, slot, mask=inside)
    tl.store(owner_ptr + slot, expert.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["block_slots"])
def _spread(
    x_ptr,
    place_ptr,
    values_ptr,
    scale_ptr,
    block_slots,
    NUM_GROUPS: tl.constexpr,
    CHOSEN: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """Quantise some groups of one row, and write them to its slots."""
    row = tl.program_id(0).to(tl.int64)
    group_g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    inside_g = group_g < NUM_GROUPS
    at_gw = group_g[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x_gw = tl.load(x_ptr + row * NUM_GROUPS * WIDTH + at_gw, mask=inside_g[:, None], other=0.0)
    x_gw = x_gw.to(tl.float32)
    scale_g = tl.maximum(tl.max(tl.abs(x_gw), 1) / LIMIT, LEAST)
    value_gw = (x_gw / scale_g[:, None]).to(values_ptr.dtype.element_ty)
    for choice in range(CHOSEN):
        slot = tl.load(place_ptr + row * CHOSEN + choice).to(tl.int64)
        target_ptr = values_ptr + slot * NUM_GROUPS * WIDTH
        tl.store(target_ptr + at_gw, value_gw, mask=inside_g[:, None])
        scale_at_g = _scale_at(slot, group_g, block_slots, NUM_GROUPS)
        tl.store(scale_ptr + scale_at_g, scale_g, mask=inside_g)


@triton.jit(do_not_specialize=["block_slots"])
def _gated_silu(
    gate_up_ptr,
    owner_ptr,
    values_ptr,
    scale_ptr,
    block_slots,
    NUM_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """Treat some groups of one slot, if a row has it."""
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(owner_ptr + slot) >= 0:
        group_g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
        inside_g = group_g < NUM_GROUPS
        inside_g1 = inside_g[:, None]
        at_gw = group_g[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        INNER: tl.constexpr = NUM_GROUPS * WIDTH
        source_ptr = gate_up_ptr + slot * 2 * INNER
        gate_gw = tl.load(source_ptr + at_gw, mask=inside_g1, other=0.0).to(tl.float32)
        up_gw = tl.load(source_ptr + INNER + at_gw, mask=inside_g1, other=0.0).to(tl.float32)
        x_gw = gate_gw * tl.sigmoid(gate_gw) * up_gw
        scale_g = tl.maximum(tl.max(tl.abs(x_gw), 1) / LIMIT, LEAST)
        value_gw = (x_gw / scale_g[:, None]).to(values_ptr.dtype.element_ty)
        tl.store(values_ptr + slot * INNER + at_gw, value_gw, mask=inside_g1)
        scale_at_g = _scale_at(slot, group_g, block_slots, NUM_GROUPS)
        tl.store(scale_ptr + scale_at_g, scale_g, mask=inside_g)


@triton.jit
def _scale_at(slot, group_g, block_slots, NUM_GROUPS: tl.constexpr):  # noqa: ANN202 a block
    """Return where the scales of one slot's groups are: in each block, slots lie side by side."""
    block = slot // block_slots
    return (block * NUM_GROUPS + group_g) * block_slots + slot % block_slots


@triton.jit
def _combine(
    out_ptr,
    place_ptr,
    weights_ptr,
    total_ptr,
    ADDS: tl.constexpr,
    CHOSEN: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Treat some columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    total = tl.zeros((COLUMNS,), tl.float32)
    for choice in range(CHOSEN):
        slot = tl.load(place_ptr + row * CHOSEN + choice).to(tl.int64)
        weight = tl.load(weights_ptr + row * CHOSEN + choice)
        total += weight * tl.load(out_ptr + slot * WIDTH + column, mask=inside, other=0.0)
    at = row * WIDTH + column
    if ADDS:
        total += tl.load(total_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(total_ptr + at, total.to(total_ptr.dtype.element_ty), mask=inside)


_launch_count = KernelLaunch(_count, varying=frozenset({3, 4}))
_launch_begin = KernelLaunch(_begin)
_launch_place = KernelLaunch(_place, varying=frozenset({4}))
_launch_spread = KernelLaunch(_spread, varying=frozenset({4}))
_launch_gated = KernelLaunch(_gated_silu, varying=frozenset({4}))
_launch_combine = KernelLaunch(_combine)
