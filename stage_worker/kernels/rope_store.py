"""Head norms, rotary embedding and the write to the KV pages in one pass, in Triton.

Everything between the merged projection and attention: each number is read once and written to
where it is used. One program treats one row.

Shapes: T rows, J heads of the merged projection, H query heads, K kv heads, d head_dim, h = d / 2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch
from stage_worker.kernels.reference import Angles, HeadNorms, PagedKeysValues


def rope_store(
    qkv_TJd: torch.Tensor,
    angles: Angles,
    norms: HeadNorms | None,
    cache: PagedKeysValues,
    slots_T: torch.Tensor,
    q_THd: torch.Tensor,
) -> None:
    """Do what reference.rope_store does; tensors are contiguous, head_dim is a power of two."""
    num_rows, num_heads, head_dim = q_THd.shape
    num_kv_heads = cache.k_PNKd.shape[2]
    _launch(
        (num_rows, 1, 1),
        (
            qkv_TJd,
            angles.cos_Th,
            angles.sin_Th,
            angles.cos_Th if norms is None else norms.q_d,
            angles.cos_Th if norms is None else norms.k_d,
            0.0 if norms is None else norms.eps,
            slots_T,
            q_THd,
            cache.k_PNKd,
            cache.v_PNKd,
        ),
        {
            "HAS_NORMS": norms is not None,
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HEADS": triton.next_power_of_2(num_heads),
            "KV_HEADS": triton.next_power_of_2(num_kv_heads),
            "HEAD_DIM": head_dim,
        },
        num_warps=4,
    )


@triton.jit
def _rope_store(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    eps,
    slots_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    HAS_NORMS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> None:
    """Treat one row."""
    row = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    column_h = tl.arange(0, HALF)
    cos_h = tl.load(cos_ptr + row * HALF + column_h)
    sin_h = tl.load(sin_ptr + row * HALF + column_h)
    source_ptr = qkv_ptr + row * (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    _turn(
        source_ptr, q_ptr + row * NUM_HEADS * HEAD_DIM, q_norm_ptr, eps, cos_h, sin_h,
        HAS_NORMS, NUM_HEADS, HEADS, HEAD_DIM,
    )  # fmt: skip
    slot = tl.load(slots_ptr + row)
    if slot >= 0:
        target = slot * NUM_KV_HEADS * HEAD_DIM
        source_ptr += NUM_HEADS * HEAD_DIM
        _turn(
            source_ptr, k_ptr + target, k_norm_ptr, eps, cos_h, sin_h,
            HAS_NORMS, NUM_KV_HEADS, KV_HEADS, HEAD_DIM,
        )  # fmt: skip
        source_ptr += NUM_KV_HEADS * HEAD_DIM
        value = tl.arange(0, KV_HEADS * HEAD_DIM)
        inside = value < NUM_KV_HEADS * HEAD_DIM
        tl.store(v_ptr + target + value, tl.load(source_ptr + value, mask=inside), mask=inside)


_launch = KernelLaunch(_rope_store)


@triton.jit
def _turn(
    source_ptr,
    target_ptr,
    norm_ptr,
    eps,
    cos_h,
    sin_h,
    HAS_NORMS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> None:
    """Normalise and turn all heads of one kind of one row."""
    HALF: tl.constexpr = HEAD_DIM // 2
    column_h = tl.arange(0, HALF)
    head_H = tl.arange(0, HEADS)
    at_Hh = head_H[:, None] * HEAD_DIM + column_h[None, :]
    inside = (head_H < NUM_HEADS)[:, None]
    low_Hh = tl.load(source_ptr + at_Hh, mask=inside, other=0.0).to(tl.float32)
    high_Hh = tl.load(source_ptr + at_Hh + HALF, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORMS:
        square_H = tl.sum(low_Hh * low_Hh, 1) + tl.sum(high_Hh * high_Hh, 1)
        scale_H1 = tl.rsqrt(square_H / HEAD_DIM + eps)[:, None]
        low_Hh *= scale_H1 * tl.load(norm_ptr + column_h).to(tl.float32)[None, :]
        high_Hh *= scale_H1 * tl.load(norm_ptr + HALF + column_h).to(tl.float32)[None, :]
    dtype = target_ptr.dtype.element_ty
    turned_low_Hh = low_Hh * cos_h[None, :] - high_Hh * sin_h[None, :]
    turned_high_Hh = high_Hh * cos_h[None, :] + low_Hh * sin_h[None, :]
    tl.store(target_ptr + at_Hh, turned_low_Hh.to(dtype), mask=inside)
    tl.store(target_ptr + at_Hh + HALF, turned_high_Hh.to(dtype), mask=inside)
