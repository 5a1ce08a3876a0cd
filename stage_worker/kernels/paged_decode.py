"""Decode attention that splits each sequence's keys over many programs (split-KV), in Triton.

One row of queries reads megabytes of keys: only many programs at once can use all of the memory's
bandwidth. Every program attends to one range of keys of one kv head for all its query heads; a
second kernel merges the ranges by their log-sum-exp. Which programs have work is decided on the
device, so a launch can be captured once and replayed for growing contexts. Numbers that change from
step to step are not specialised for: each would be compiled when it first comes up.

Shapes: B sequences, H query heads, K kv heads, G = H / K, d head_dim, S splits, x = B * H * S.
Source: https://arxiv.org/abs/2205.14135, https://crfm.stanford.edu/2023/10/12/flashdecoding.html
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from stage_worker.kernels.launch import KernelLaunch
from stage_worker.kernels.reference import PagedContexts, PagedKeysValues
from stage_worker.kernels.split_keys import (
    LEAST_ROWS,
    LOG2_E,
    SplitMemory,
    Take,
    finish,
    fold,
    own_range,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the work is cut; the defaults are within 3 % of an H200's best in all shapes."""

    keys: int = 64
    """That a program loads at once, at most a page."""
    stages: int = 3
    """Depth of the pipeline of loads."""
    warps: int = 4
    programs_per_sm: int = 2
    """That the number of splits aims at."""


class PagedDecode:
    """Attends to one query row a sequence; launches on one stream, one at a time."""

    def __init__(
        self, device: torch.device, tiling: Tiling = Tiling(), take: Take | None = None
    ) -> None:
        """Take where the splits' memory is from, as for SplitMemory."""
        self._tiling = tiling
        self._memory = SplitMemory(device, take)

    def __call__(
        self,
        q_BHd: torch.Tensor,
        cache: PagedKeysValues,
        contexts: PagedContexts,
        out_BHd: torch.Tensor,
        scale: float,
    ) -> None:
        """Do what reference.paged_decode does.

        Query rows and outputs are contiguous; the page is a power of two.
        """
        batch, num_heads, head_dim = q_BHd.shape
        num_kv_heads = cache.k_PNKd.shape[2]
        memory = self._memory
        num_splits = memory.splits(batch * num_kv_heads, self._tiling.programs_per_sm)
        memory.reserve(batch * num_heads * num_splits, head_dim)
        group = num_heads // num_kv_heads
        _launch_attend(
            (num_kv_heads, num_splits, batch),
            (
                q_BHd,
                cache.k_PNKd,
                cache.v_PNKd,
                contexts.page_table_Bp,
                contexts.num_keys_B,
                memory.partial,
                memory.lse,
                scale * LOG2_E,
                contexts.page_table_Bp.stride(0),
            ),
            {
                "GROUP": group,
                "ROWS": max(LEAST_ROWS, triton.next_power_of_2(group)),
                "NUM_KV_HEADS": num_kv_heads,
                "HEAD_DIM": head_dim,
                "PAGE": cache.page_tokens,
                "KEYS": min(self._tiling.keys, cache.page_tokens),
            },
            num_warps=self._tiling.warps,
            num_stages=self._tiling.stages,
        )
        memory.merge(out_BHd, num_splits)


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    num_keys_ptr,
    partial_ptr,
    lse_ptr,
    scale_log2,
    table_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """Attend from the query heads of one kv head to one range of the keys of one sequence."""
    kv_head = tl.program_id(0)
    sequence = tl.program_id(2)
    num_keys = tl.load(num_keys_ptr + sequence)
    first, end = own_range(tl.cdiv(num_keys, KEYS))

    row_R = tl.arange(0, ROWS)
    key_n = tl.arange(0, KEYS)
    column_d = tl.arange(0, HEAD_DIM)
    head_R = kv_head * GROUP + row_R
    q_row_R = sequence * NUM_KV_HEADS * GROUP + head_R
    is_head_R = row_R < GROUP
    at_Rd = q_row_R[:, None] * HEAD_DIM + column_d[None, :]
    q_Rd = tl.load(q_ptr + at_Rd, mask=is_head_R[:, None], other=0.0)
    TOKEN: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    inner_nd = key_n[:, None] * TOKEN + kv_head * HEAD_DIM + column_d[None, :]

    best_R = tl.full((ROWS,), -float("inf"), tl.float32)
    sum_R = tl.zeros((ROWS,), tl.float32)
    sum_Rd = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    # The page id is loaded an iteration ahead, so that no load of keys waits for a load of its own.
    table_ptr += sequence * table_stride
    next_page = tl.load(table_ptr + first * KEYS // PAGE, mask=first < end, other=0)
    for block in range(first, end):
        begin = block * KEYS
        page = next_page.to(tl.int64)
        next_page = tl.load(table_ptr + (begin + KEYS) // PAGE, mask=block + 1 < end, other=0)
        origin = (page * PAGE + begin % PAGE) * TOKEN
        is_key_n = begin + key_n < num_keys
        k_nd = tl.load(k_ptr + origin + inner_nd, mask=is_key_n[:, None], other=0.0)
        score_Rn = tl.dot(q_Rd, tl.trans(k_nd)) * scale_log2
        score_Rn = tl.where(is_key_n[None, :], score_Rn, -float("inf"))
        v_nd = tl.load(v_ptr + origin + inner_nd, mask=is_key_n[:, None], other=0.0)
        best_R, sum_R, sum_Rd = fold(best_R, sum_R, sum_Rd, score_Rn, v_nd)

    mean_Rd, lse_R = finish(best_R, sum_R, sum_Rd)
    partial_R = q_row_R * tl.num_programs(1) + tl.program_id(1)
    at_Rd = partial_R[:, None] * HEAD_DIM + column_d[None, :]
    tl.store(lse_ptr + partial_R, lse_R, mask=is_head_R)
    tl.store(partial_ptr + at_Rd, mean_Rd, mask=is_head_R[:, None])


_launch_attend = KernelLaunch(_attend, varying=frozenset({8}))
