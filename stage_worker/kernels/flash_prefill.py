"""Prefill attention over paged keys by FlashAttention-4. The one module that imports flash_attn.

Queries of several sequences lie behind one another; each sees its sequence's keys up to its own
position, its chunk's keys included, so those are in their pages before the call. The first call
of a process compiles for seconds; later lengths do not.

Shapes: T query rows of all sequences, B sequences, H query heads, K kv heads, d head_dim.
"""

from __future__ import annotations

import torch
from flash_attn.cute import flash_attn_varlen_func

from stage_worker.kernels.reference import PagedContexts, PagedKeysValues, QueryRows


def paged_prefill(
    q_THd: torch.Tensor,
    rows: QueryRows,
    cache: PagedKeysValues,
    contexts: PagedContexts,
    scale: float,
) -> torch.Tensor:
    """Do what reference.paged_prefill does, into new memory.

    Pages must be finite behind the last key too.
    """
    result = flash_attn_varlen_func(
        q_THd,
        cache.k_PNKd,
        cache.v_PNKd,
        cu_seqlens_q=rows.begins_B1,
        max_seqlen_q=rows.longest,
        seqused_k=contexts.num_keys_B,
        page_table=contexts.page_table_Bp,
        softmax_scale=scale,
        causal=True,
    )
    out_THd: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out_THd
