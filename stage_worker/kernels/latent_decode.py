"""Decode attention to cached latents (absorbed form), its keys split over many programs, in Triton.

A latent is the key and, but for its turned part, the value of all heads: a program loads it once
for both products and for as many heads as make a full product. See paged_decode and split_keys.

Shapes: B sequences, H query heads, c latent rank, r turned part, P pages, N tokens of a page.
Source: https://arxiv.org/abs/2405.04434
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
class LatentTiling:
    """How the work is cut."""

    rows: int = 64
    """Query heads of a program at most."""
    keys: int = 64
    """That a program loads at once, at most a page."""
    stages: int = 2
    """Depth of the pipeline of loads."""
    warps: int = 8
    programs_per_sm: int = 1
    """That the number of splits aims at."""


class LatentDecode:
    """Attends to one query row a sequence; launches on one stream, one at a time."""

    def __init__(
        self, device: torch.device, tiling: LatentTiling = LatentTiling(), take: Take | None = None
    ) -> None:
        """Take where the splits' memory is from, as for SplitMemory."""
        self._tiling = tiling
        self._memory = SplitMemory(device, take)

    def __call__(
        self,
        q_BHd: torch.Tensor,
        cache: PagedKeysValues,
        contexts: PagedContexts,
        out_BHc: torch.Tensor,
        scale: float,
    ) -> None:
        """Do what reference.paged_decode does; values are the first columns of the keys.

        Query rows and outputs are contiguous; the page, c and r are powers of two.
        """
        batch, num_heads, width = q_BHd.shape
        rank = out_BHc.shape[2]
        memory, tiling = self._memory, self._tiling
        rows = min(tiling.rows, max(LEAST_ROWS, triton.next_power_of_2(num_heads)))
        num_blocks = triton.cdiv(num_heads, rows)
        num_splits = memory.splits(batch * num_blocks, tiling.programs_per_sm)
        memory.reserve(batch * num_heads * num_splits, rank)
        _launch_attend(
            (num_blocks, num_splits, batch),
            (
                q_BHd,
                cache.k_PNKd,
                contexts.page_table_Bp,
                contexts.num_keys_B,
                memory.partial,
                memory.lse,
                scale * LOG2_E,
                contexts.page_table_Bp.stride(0),
            ),
            {
                "NUM_HEADS": num_heads,
                "ROWS": rows,
                "RANK": rank,
                "TURNED": width - rank,
                "PAGE": cache.page_tokens,
                "KEYS": min(tiling.keys, cache.page_tokens),
            },
            num_warps=tiling.warps if rows == tiling.rows else 4,
            num_stages=tiling.stages,
        )
        memory.merge(out_BHc, num_splits)


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    q_ptr,
    latent_ptr,
    table_ptr,
    num_keys_ptr,
    partial_ptr,
    lse_ptr,
    scale_log2,
    table_stride,
    NUM_HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    TURNED: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """Attend from some query heads to one range of the latents of one sequence."""
    sequence = tl.program_id(2)
    num_keys = tl.load(num_keys_ptr + sequence)
    first, end = own_range(tl.cdiv(num_keys, KEYS))

    TOKEN: tl.constexpr = RANK + TURNED
    head_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    key_n = tl.arange(0, KEYS)
    column_1c = tl.arange(0, RANK)[None, :]
    column_1r = RANK + tl.arange(0, TURNED)[None, :]
    is_head_R = head_R < NUM_HEADS
    q_row_R = sequence * NUM_HEADS + head_R
    q_at_R1 = q_row_R[:, None] * TOKEN
    q_Rc = tl.load(q_ptr + q_at_R1 + column_1c, mask=is_head_R[:, None], other=0.0)
    q_Rr = tl.load(q_ptr + q_at_R1 + column_1r, mask=is_head_R[:, None], other=0.0)

    best_R = tl.full((ROWS,), -float("inf"), tl.float32)
    sum_R = tl.zeros((ROWS,), tl.float32)
    sum_Rc = tl.zeros((ROWS, RANK), tl.float32)
    # The page id is loaded an iteration ahead, so that no load of keys waits for a load of its own.
    table_ptr += sequence * table_stride
    next_page = tl.load(table_ptr + first * KEYS // PAGE, mask=first < end, other=0)
    for block in range(first, end):
        begin = block * KEYS
        page = next_page.to(tl.int64)
        next_page = tl.load(table_ptr + (begin + KEYS) // PAGE, mask=block + 1 < end, other=0)
        token_ptr = latent_ptr + (page * PAGE + begin % PAGE) * TOKEN
        is_key_n = begin + key_n < num_keys
        at_n1 = key_n[:, None] * TOKEN
        latent_nc = tl.load(token_ptr + at_n1 + column_1c, mask=is_key_n[:, None], other=0.0)
        turned_nr = tl.load(token_ptr + at_n1 + column_1r, mask=is_key_n[:, None], other=0.0)
        score_Rn = tl.dot(q_Rc, tl.trans(latent_nc))
        score_Rn = tl.dot(q_Rr, tl.trans(turned_nr), score_Rn) * scale_log2
        score_Rn = tl.where(is_key_n[None, :], score_Rn, -float("inf"))
        best_R, sum_R, sum_Rc = fold(best_R, sum_R, sum_Rc, score_Rn, latent_nc)

    mean_Rc, lse_R = finish(best_R, sum_R, sum_Rc)
    partial_R = q_row_R * tl.num_programs(1) + tl.program_id(1)
    at_Rc = partial_R[:, None] * RANK + column_1c
    tl.store(lse_ptr + partial_R, lse_R, mask=is_head_R)
    tl.store(partial_ptr + at_Rc, mean_Rc, mask=is_head_R[:, None])


_launch_attend = KernelLaunch(_attend, varying=frozenset({7}))
