"""What kernels share that split each sequence's keys over many programs, in Triton.

Each program folds its range of keys into a running softmax; a second kernel merges the ranges by
their log-sum-exp. Programs of one sequence and their ranges are told by axis 1 of the grid.

Shapes: R query rows of a program, n keys of a block, d width of a value, S splits.
Source: https://arxiv.org/abs/2205.14135, https://crfm.stanford.edu/2023/10/12/flashdecoding.html
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch

LEAST_ROWS = 16
"""Rows of the smallest matrix product."""
LOG2_E = math.log2(math.e)
Take = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
"""Returns memory for a name, void when the name is taken again."""
_MOST_SPLITS = 128
_MOST_COLUMNS = 128
"""Of a row that a program merges."""


class SplitMemory:
    """One output row and log-sum-exp of each query row and split; one launch at a time.

    The memory is the caller's, because a captured launch keeps its address.
    """

    def __init__(self, device: torch.device, take: Take | None = None) -> None:
        """Take where the memory is from; new memory for each launch if that is None."""
        self._num_sms = _count_sms(device)
        self._take = take or (
            lambda _name, shape, dtype: torch.empty(shape, dtype=dtype, device=device)
        )
        self.partial = torch.empty(0, device=device)
        self.lse = torch.empty(0, device=device)

    def splits(self, num_programs: int, programs_per_sm: int) -> int:
        """Return in how many ranges the keys of each of num_programs are cut."""
        wanted = programs_per_sm * self._num_sms // num_programs
        return min(max(wanted, 1), _MOST_SPLITS)

    def reserve(self, num_rows: int, width: int) -> None:
        """Take room for rows times splits, of a width."""
        self.partial = self._take("splits", (num_rows * width,), torch.float32)
        self.lse = self._take("splits' sums", (num_rows,), torch.float32)

    def merge(self, out_BHd: torch.Tensor, num_splits: int) -> None:
        """Write the merged ranges of all query rows to out, contiguous."""
        width = out_BHd.shape[-1]
        columns = min(width, _MOST_COLUMNS)
        _launch_merge(
            (out_BHd.shape[0] * out_BHd.shape[1], width // columns, 1),
            (self.partial, self.lse, out_BHd, num_splits),
            {
                "SPLITS": triton.next_power_of_2(num_splits),
                "WIDTH": width,
                "COLUMNS": columns,
            },
            num_warps=4,
        )


def _count_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def own_range(num_blocks):  # noqa: ANN201 two scalars
    """Return the blocks of keys of this program's split, [first, end)."""
    per_split = tl.cdiv(num_blocks, tl.num_programs(1))
    first = tl.program_id(1) * per_split
    return first, tl.minimum(first + per_split, num_blocks)


@triton.jit
def fold(best_R, sum_R, sum_Rd, score_Rn, v_nd):  # noqa: ANN201 a tuple of blocks
    """Add keys with these scores to a running softmax: greatest score, weights, weighted values."""
    new_R = tl.maximum(best_R, tl.max(score_Rn, 1))
    kept_R = tl.exp2(best_R - new_R)
    weight_Rn = tl.exp2(score_Rn - new_R[:, None])
    sum_Rd = tl.dot(weight_Rn.to(v_nd.dtype), v_nd, sum_Rd * kept_R[:, None])
    return new_R, sum_R * kept_R + tl.sum(weight_Rn, 1), sum_Rd


@triton.jit
def finish(best_R, sum_R, sum_Rd):  # noqa: ANN201 a tuple of blocks
    """Return a running softmax's output and log-sum-exp; without keys zeros that weigh nothing."""
    lse_R = tl.where(sum_R > 0, best_R + tl.log2(sum_R), -float("inf"))
    return sum_Rd / tl.where(sum_R > 0, sum_R, 1.0)[:, None], lse_R


@triton.jit(do_not_specialize=["num_splits"])
def _merge(
    partial_ptr,
    lse_ptr,
    out_ptr,
    num_splits,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Merge the ranges of some columns of one query row."""
    row = tl.program_id(0)
    split_S = tl.arange(0, SPLITS)
    column_d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_split_S = split_S < num_splits
    partial_S = row * num_splits + split_S
    lse_S = tl.load(lse_ptr + partial_S, mask=is_split_S, other=-float("inf"))
    weight_S = tl.exp2(lse_S - tl.max(lse_S, 0))
    weight_S = weight_S / tl.sum(weight_S, 0)
    mean_Sd = tl.load(
        partial_ptr + partial_S[:, None] * WIDTH + column_d[None, :],
        mask=is_split_S[:, None],
        other=0.0,
    )
    out_d = tl.sum(mean_Sd * weight_S[:, None], 0)
    tl.store(out_ptr + row * WIDTH + column_d, out_d.to(out_ptr.dtype.element_ty))


_launch_merge = KernelLaunch(_merge, varying=frozenset({3}))
