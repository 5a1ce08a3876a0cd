"""Prefill attention over paged keys by FlashAttention-4. The one module that imports flash_attn.

Queries of several sequences lie behind one another; each sees its sequence's keys up to its own
position, its chunk's keys included, so those are in their pages before the call. The first call
of a process compiles for seconds; later lengths do not.

Shapes: T query rows of all sequences, B sequences, H query heads, K kv heads, d head_dim.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch
from flash_attn.cute import flash_attn_varlen_func, interface

from stage_worker.kernels.reference import PagedContexts, PagedKeysValues, QueryRows
from stage_worker.kernels.repeated_call import RecordedFunctions, RepeatedCall

_log = structlog.get_logger(__name__)


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


class SequencesPrefill:
    """Attends to keys and values that lie behind one another, not in pages; for one thread."""

    def __init__(self) -> None:
        self._contexts: PagedContexts | None = None
        """Of the call; no other microbatch has them."""
        self._key_begins_B1 = torch.empty(0)

    def __call__(
        self,
        q_THd: torch.Tensor,
        rows: QueryRows,
        k_nHd: torch.Tensor,
        v_nHe: torch.Tensor,
        contexts: PagedContexts,
        scale: float,
    ) -> torch.Tensor:
        """Do what reference.sequences_prefill does, into new memory."""
        num_keys_B = contexts.num_keys_B
        if self._contexts is not contexts:
            self._contexts = contexts
            self._key_begins_B1 = num_keys_B.new_zeros(len(num_keys_B) + 1)
            torch.cumsum(num_keys_B, 0, dtype=torch.int32, out=self._key_begins_B1[1:])
        result = flash_attn_varlen_func(
            q_THd,
            k_nHd,
            v_nHe,
            cu_seqlens_q=rows.begins_B1,
            cu_seqlens_k=self._key_begins_B1,
            max_seqlen_q=rows.longest,
            max_seqlen_k=len(k_nHd),
            softmax_scale=scale,
            causal=True,
        )
        out_THe: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out_THe


class PagedPrefill:
    """Does what paged_prefill does, into memory of the caller; for one thread.

    Layer after layer of one microbatch, it calls what the wrapper called for the first.
    """

    def __init__(self) -> None:
        if _recorded is None:
            _log.warning("FlashAttention-4 is called through its wrapper for every layer")
        self._contexts: PagedContexts | None = None
        """Of the call, as no other microbatch has them."""
        self._call: RepeatedCall | None = None

    def __call__(
        self,
        q_THd: torch.Tensor,
        rows: QueryRows,
        cache: PagedKeysValues,
        contexts: PagedContexts,
        out_THd: torch.Tensor,
        scale: float,
    ) -> None:
        """Write to out, contiguous and aligned to 16 bytes; see paged_prefill."""
        if self._call is not None and self._contexts is contexts:
            self._call(q_THd, cache.k_PNKd, cache.v_PNKd, out_THd)
            return
        result_THd = paged_prefill(q_THd, rows, cache, contexts, scale)
        out_THd.copy_(result_THd)
        self._contexts, self._call = contexts, None
        if _recorded is not None:
            call, _recorded.last = _recorded.last, None
            if call is not None:
                self._call = call.behind((q_THd, cache.k_PNKd, cache.v_PNKd, result_THd))


def _record() -> RecordedFunctions | None:
    """Watch what the wrapper calls; None if this version keeps its functions elsewhere."""
    wrapper: Any = getattr(interface, "_flash_attn_fwd", None)
    functions = getattr(wrapper, "compile_cache", None)
    if functions is None:
        return None
    recorded = wrapper.compile_cache = RecordedFunctions(functions)
    return recorded


_recorded = _record()
