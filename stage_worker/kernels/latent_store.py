"""What lies between the projections and attention to latents, each in one pass, in Triton.

Rows of a latent are normalised, their keys turned, and both written to their page; queries are
turned on their way to dense memory.

Shapes: T rows, H query heads, R latent rank, p plain and r turned part of a head, h = r / 2,
q = p + r, d = R + r.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch
from stage_worker.kernels.reference import Angles, LatentParts, PagedKeysValues

_HEADS = 16
"""Query heads that a program turns."""


def latent_store(
    latent_Td: torch.Tensor,
    angles: Angles,
    parts: LatentParts,
    cache: PagedKeysValues,
    slots_T: torch.Tensor,
) -> None:
    """Do what reference.latent_store does; the numbers of a row of latents lie side by side."""
    rank = len(parts.norm_R)
    half = angles.cos_Th.shape[1]
    _launch_store(
        (len(latent_Td), 1, 1),
        (
            latent_Td,
            angles.cos_Th,
            angles.sin_Th,
            parts.norm_R,
            parts.eps,
            slots_T,
            cache.k_PNKd,
            latent_Td.stride(0),
        ),
        {
            "RANK": rank,
            "COLUMNS": triton.next_power_of_2(rank),
            "HALF": half,
            "PAIRS": triton.next_power_of_2(half),
            "INTERLEAVED": parts.interleaved,
        },
        num_warps=4,
    )


def turn_queries(
    q_TN: torch.Tensor, angles: Angles, parts: LatentParts, q_THq: torch.Tensor
) -> None:
    """Do what reference.turn_queries does; the numbers of a row lie side by side."""
    num_rows, num_heads, width = q_THq.shape
    half = angles.cos_Th.shape[1]
    plain = width - 2 * half
    _launch_turn(
        (num_rows, triton.cdiv(num_heads, _HEADS), 1),
        (q_TN, angles.cos_Th, angles.sin_Th, q_THq, q_TN.stride(0)),
        {
            "NUM_HEADS": num_heads,
            "HEADS": _HEADS,
            "PLAIN": plain,
            "COLUMNS": triton.next_power_of_2(plain),
            "HALF": half,
            "PAIRS": triton.next_power_of_2(half),
            "INTERLEAVED": parts.interleaved,
        },
        num_warps=4,
    )


@triton.jit(do_not_specialize=["row_stride"])
def _store(
    latent_ptr,
    cos_ptr,
    sin_ptr,
    norm_ptr,
    eps,
    slots_ptr,
    page_ptr,
    row_stride,
    RANK: tl.constexpr,
    COLUMNS: tl.constexpr,
    HALF: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> None:
    """Treat one row."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    if slot >= 0:
        source_ptr = latent_ptr + row * row_stride
        target_ptr = page_ptr + slot * (RANK + 2 * HALF)
        dtype = page_ptr.dtype.element_ty
        column = tl.arange(0, COLUMNS)
        inside = column < RANK
        x = tl.load(source_ptr + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / RANK + eps)
        weight = tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(target_ptr + column, (x * scale * weight).to(dtype), mask=inside)
        pair_h = tl.arange(0, PAIRS)
        is_pair_h = pair_h < HALF
        cos_h = tl.load(cos_ptr + row * HALF + pair_h, mask=is_pair_h, other=0.0)
        sin_h = tl.load(sin_ptr + row * HALF + pair_h, mask=is_pair_h, other=0.0)
        low_at_h, high_at_h = _pairs(pair_h, HALF, INTERLEAVED)
        source_ptr += RANK
        low_h = tl.load(source_ptr + low_at_h, mask=is_pair_h, other=0.0).to(tl.float32)
        high_h = tl.load(source_ptr + high_at_h, mask=is_pair_h, other=0.0).to(tl.float32)
        target_ptr += RANK
        turned_h = low_h * cos_h - high_h * sin_h
        tl.store(target_ptr + pair_h, turned_h.to(dtype), mask=is_pair_h)
        turned_h = high_h * cos_h + low_h * sin_h
        tl.store(target_ptr + HALF + pair_h, turned_h.to(dtype), mask=is_pair_h)


@triton.jit(do_not_specialize=["row_stride"])
def _turn(
    q_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    row_stride,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    PLAIN: tl.constexpr,
    COLUMNS: tl.constexpr,
    HALF: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> None:
    """Treat some heads of one row."""
    row = tl.program_id(0).to(tl.int64)
    head_H1 = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    is_head_H1 = head_H1 < NUM_HEADS
    WIDTH: tl.constexpr = PLAIN + 2 * HALF
    source_ptr = q_ptr + row * row_stride + head_H1 * WIDTH
    target_ptr = out_ptr + row * NUM_HEADS * WIDTH + head_H1 * WIDTH
    column_p = tl.arange(0, COLUMNS)[None, :]
    inside = is_head_H1 & (column_p < PLAIN)
    tl.store(target_ptr + column_p, tl.load(source_ptr + column_p, mask=inside), mask=inside)
    pair_h = tl.arange(0, PAIRS)
    is_pair_h = pair_h < HALF
    cos_h = tl.load(cos_ptr + row * HALF + pair_h, mask=is_pair_h, other=0.0)
    sin_h = tl.load(sin_ptr + row * HALF + pair_h, mask=is_pair_h, other=0.0)
    low_at_h, high_at_h = _pairs(pair_h, HALF, INTERLEAVED)
    inside = is_head_H1 & is_pair_h[None, :]
    source_ptr += PLAIN
    low_Hh = tl.load(source_ptr + low_at_h[None, :], mask=inside, other=0.0).to(tl.float32)
    high_Hh = tl.load(source_ptr + high_at_h[None, :], mask=inside, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    target_ptr += PLAIN + pair_h[None, :]
    turned_Hh = low_Hh * cos_h[None, :] - high_Hh * sin_h[None, :]
    tl.store(target_ptr, turned_Hh.to(dtype), mask=inside)
    turned_Hh = high_Hh * cos_h[None, :] + low_Hh * sin_h[None, :]
    tl.store(target_ptr + HALF, turned_Hh.to(dtype), mask=inside)


@triton.jit
def _pairs(pair_h, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):  # noqa: ANN202 two blocks
    """Return where the numbers of each pair are that is turned."""
    if INTERLEAVED:
        low_at_h, high_at_h = 2 * pair_h, 2 * pair_h + 1
    else:
        low_at_h, high_at_h = pair_h, HALF + pair_h
    return low_at_h, high_at_h


_launch_store = KernelLaunch(_store, varying=frozenset({7}))
_launch_turn = KernelLaunch(_turn, varying=frozenset({4}))
