"""Quantises activations for block-scaled FP8 products: one scale for 128 columns of a row, Triton.

Shapes: T rows, D width, g groups of 128 columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch
from stage_worker.kernels.reference import FP8_MAX, GROUP_WIDTH, LEAST_SCALE

_GROUPS = 16
"""Groups of one row that a program treats."""
_ALIGNMENT = 4
"""Float32 scales in 16 bytes, by which DeepGEMM's copies of a column of scales are aligned."""


def empty_scales(num_rows: int, width: int, device: torch.device) -> torch.Tensor:
    """Return memory for scales [T, g], columns contiguous and aligned as DeepGEMM wants them."""
    padded = triton.cdiv(num_rows, _ALIGNMENT) * _ALIGNMENT
    return torch.empty(width // GROUP_WIDTH, padded, device=device).t()[:num_rows]


def quantise(x_TD: torch.Tensor, out_TD: torch.Tensor, scale_Tg: torch.Tensor) -> None:
    """Do what reference.quantise does; x and out are contiguous, scales of any strides."""
    num_rows, width = x_TD.shape
    num_groups = width // GROUP_WIDTH
    _launch(
        (num_rows, triton.cdiv(num_groups, _GROUPS), 1),
        (x_TD, out_TD, scale_Tg, num_groups, *scale_Tg.stride()),
        {"GROUPS": _GROUPS, "WIDTH": GROUP_WIDTH, "LIMIT": FP8_MAX, "LEAST": LEAST_SCALE},
        num_warps=4,
    )


@triton.jit(do_not_specialize=["group_stride"])
def _quantise(
    x_ptr,
    out_ptr,
    scale_ptr,
    num_groups,
    row_stride,
    group_stride,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """Treat some groups of one row."""
    row = tl.program_id(0).to(tl.int64)
    group_g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    inside_g = group_g < num_groups
    at_gw = (row * num_groups + group_g)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x_gw = tl.load(x_ptr + at_gw, mask=inside_g[:, None], other=0.0).to(tl.float32)
    scale_g = tl.maximum(tl.max(tl.abs(x_gw), 1) / LIMIT, LEAST)
    tl.store(scale_ptr + row * row_stride + group_g * group_stride, scale_g, mask=inside_g)
    q_gw = (x_gw / scale_g[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at_gw, q_gw, mask=inside_g[:, None])


_launch = KernelLaunch(_quantise, varying=frozenset({5}))
