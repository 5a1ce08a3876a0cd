"""Residual addition and RMS norm in one pass over the rows, in Triton.

Shapes: T rows, D width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch

_WIDE = 4096
"""From this width on a row is worth twice the warps."""


def add_norm(
    delta_TD: torch.Tensor | None,
    hidden_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    out_TD: torch.Tensor,
) -> None:
    """Do what reference.add_norm does; tensors are contiguous."""
    num_rows, width = hidden_TD.shape
    first_TD = hidden_TD if delta_TD is None else delta_TD
    _launch(
        (num_rows, 1, 1),
        (first_TD, hidden_TD, weight_D, out_TD, eps),
        {
            "HAS_DELTA": delta_TD is not None,
            "WIDTH": width,
            "COLUMNS": triton.next_power_of_2(width),
        },
        num_warps=8 if width >= _WIDE else 4,
    )


@triton.jit
def _add_norm(
    delta_ptr,
    hidden_ptr,
    weight_ptr,
    out_ptr,
    eps,
    HAS_DELTA: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Treat one row; the norm is that of the sum as it is stored."""
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    x = tl.load(hidden_ptr + at, mask=inside, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(hidden_ptr.dtype.element_ty)
        tl.store(hidden_ptr + at, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (wide * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


_launch = KernelLaunch(_add_norm)
