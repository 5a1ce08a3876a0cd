"""The activation of a gated feed-forward block in one pass, in Triton.

Shapes: T rows, I half of the gated width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch

_COLUMNS = 2048


def gated_silu(gate_up_TI: torch.Tensor, out_TI: torch.Tensor) -> None:
    """Do what reference.gated_silu does; tensors are contiguous."""
    num_rows, width = out_TI.shape
    _launch(
        (num_rows, triton.cdiv(width, _COLUMNS), 1),
        (gate_up_TI, out_TI, width),
        {"COLUMNS": _COLUMNS},
        num_warps=4,
    )


@triton.jit
def _gated_silu(gate_up_ptr, out_ptr, width, COLUMNS: tl.constexpr) -> None:
    """Treat a part of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    gate = tl.load(gate_up_ptr + row * 2 * width + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * width + width + column, mask=inside).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * width + column, value.to(out_ptr.dtype.element_ty), mask=inside)


_launch = KernelLaunch(_gated_silu)
