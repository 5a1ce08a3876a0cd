"""Attention over paged keys, behind one interface: kernels for GPUs, or plain torch anywhere.

Shapes: T rows of a run, H query heads, K kv heads, G = H / K, d head_dim, n keys of a sequence,
t rows of a tile.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional

from stage_worker.kernels.reference import PagedKeysValues
from stage_worker.paged.scratch import Scratch
from stage_worker.paged.sequences import Sequences

_SCORES = 1 << 26
"""Scores of a tile of plain attention, float32."""
_FUSED_DIM = 256
"""Widest heads that torch's fused attention takes."""


class Attention(Protocol):
    """Attends from the rows of a run to all keys of its sequences, up to each row's position."""

    def __call__(
        self, q_THd: torch.Tensor, run: Sequences, cache: PagedKeysValues, out_THd: torch.Tensor
    ) -> None:
        """Write to out; all tensors have the rows of the run only."""
        ...


class SequencesAttention(Protocol):
    """Attends from the rows of a run to keys and values of all heads, which lie in no pages."""

    def __call__(
        self,
        q_THd: torch.Tensor,
        run: Sequences,
        k_nHd: torch.Tensor,
        v_nHe: torch.Tensor,
        out_THe: torch.Tensor,
    ) -> None:
        """Write to out; the keys of the run's sequences lie behind one another."""
        ...


class FlashSequences:
    """FlashAttention-4, for chunks whose keys are in no pages."""

    def __init__(self, scale: float) -> None:
        self._attend: Callable[..., torch.Tensor] = _kernel("flash_prefill").SequencesPrefill()
        self._scale = scale

    def __call__(
        self,
        q_THd: torch.Tensor,
        run: Sequences,
        k_nHd: torch.Tensor,
        v_nHe: torch.Tensor,
        out_THe: torch.Tensor,
    ) -> None:
        """See SequencesAttention."""
        out_THe.copy_(self._attend(q_THd, run.query_rows, k_nHd, v_nHe, run.contexts, self._scale))


class FlashPrefill:
    """FlashAttention-4, for chunks."""

    def __init__(self, scale: float) -> None:
        self._attend: Callable[..., None] = _kernel("flash_prefill").PagedPrefill()
        self._scale = scale

    def __call__(
        self, q_THd: torch.Tensor, run: Sequences, cache: PagedKeysValues, out_THd: torch.Tensor
    ) -> None:
        """See Attention."""
        self._attend(q_THd, run.query_rows, cache, run.contexts, out_THd, self._scale)


class SplitDecode:
    """Split-KV attention in Triton, for single tokens."""

    def __init__(self, scale: float, scratch: Scratch) -> None:
        self._attend: Callable[..., None] = _kernel("paged_decode").PagedDecode(
            scratch.device, take=scratch.take
        )
        self._scale = scale

    def __call__(
        self, q_THd: torch.Tensor, run: Sequences, cache: PagedKeysValues, out_THd: torch.Tensor
    ) -> None:
        """See Attention."""
        self._attend(q_THd, cache, run.contexts, out_THd, self._scale)


class SplitLatentDecode:
    """Split-KV attention to latents in Triton, for single tokens in the absorbed form."""

    def __init__(self, scale: float, scratch: Scratch) -> None:
        self._attend: Callable[..., None] = _kernel("latent_decode").LatentDecode(
            scratch.device, take=scratch.take
        )
        self._scale = scale

    def __call__(
        self, q_THd: torch.Tensor, run: Sequences, cache: PagedKeysValues, out_THd: torch.Tensor
    ) -> None:
        """See Attention."""
        self._attend(q_THd, cache, run.contexts, out_THd, self._scale)


class TorchAttention:
    """Plain torch: its fused attention where it takes the operands, else tiles of products.

    The keys of each sequence are gathered from their pages first.
    """

    def __init__(self, scale: float, window: int | None = None) -> None:
        """Take how many positions a query sees, its own included; None for all."""
        self._scale = scale
        self._window = window
        # Imports torch's compiler, seconds that a worker without paged stages need not wait.
        self._bias = importlib.import_module("torch.nn.attention.bias")

    def __call__(
        self, q_THd: torch.Tensor, run: Sequences, cache: PagedKeysValues, out_THd: torch.Tensor
    ) -> None:
        """See Attention."""
        first = 0
        for index, num_rows in enumerate(run.row_counts):
            rows = slice(first, first + num_rows)
            num_keys = run.key_counts[index]
            num_pages = -(-num_keys // cache.page_tokens)
            page_ids = run.contexts.page_table_Bp[index, :num_pages]
            k_nKd = cache.k_PNKd.index_select(0, page_ids).flatten(0, 1)[:num_keys]
            v_nKd = k_nKd[..., : cache.v_PNKd.shape[3]]
            if cache.v_PNKd.data_ptr() != cache.k_PNKd.data_ptr():
                v_nKd = cache.v_PNKd.index_select(0, page_ids).flatten(0, 1)[:num_keys]
            self._attend(q_THd[rows], k_nKd, v_nKd, out_THd[rows])
            first += num_rows

    def _attend(
        self, q_THd: torch.Tensor, k_nKd: torch.Tensor, v_nKd: torch.Tensor, out_THd: torch.Tensor
    ) -> None:
        is_fused = q_THd.dtype != torch.float32 and q_THd.shape[2] <= _FUSED_DIM
        is_fused = is_fused and q_THd.shape[2] == v_nKd.shape[2]
        if is_fused and self._window is None:
            mask = None
            if len(q_THd) > 1:
                mask = self._bias.causal_lower_right(len(q_THd), len(k_nKd))
            out_THd.copy_(_fused(q_THd, k_nKd, v_nKd, mask, self._scale))
            return
        num_rows, num_keys = len(q_THd), len(k_nKd)
        step = max(1, _SCORES // (q_THd.shape[1] * num_keys))
        for begin in range(0, num_rows, step):
            rows = slice(begin, min(begin + step, num_rows))
            last_key = num_keys - num_rows + rows.stop
            first_key = 0
            if self._window is not None:
                first_key = max(0, num_keys - num_rows + begin + 1 - self._window)
            keys = slice(first_key, last_key)
            self._attend_tile(q_THd[rows], k_nKd[keys], v_nKd[keys], out_THd[rows])

    def _attend_tile(
        self, q_tHd: torch.Tensor, k_nKd: torch.Tensor, v_nKd: torch.Tensor, out_tHd: torch.Tensor
    ) -> None:
        """Attend from rows that are the last ones of the keys."""
        num_rows, num_heads, head_dim = q_tHd.shape
        num_keys, num_kv_heads, _ = k_nKd.shape
        q_KGtd = q_tHd.view(num_rows, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        q_Kxd = q_KGtd.reshape(num_kv_heads, -1, head_dim)
        scores_Kxn = _wide_products(q_Kxd, k_nKd.permute(1, 2, 0)).mul_(self._scale)
        scores_KGtn = scores_Kxn.view(num_kv_heads, -1, num_rows, num_keys)
        row_t1 = torch.arange(num_keys - num_rows, num_keys, device=q_tHd.device)[:, None]
        age_tn = row_t1 - torch.arange(num_keys, device=q_tHd.device)
        hidden_tn = age_tn < 0
        if self._window is not None:
            hidden_tn |= age_tn >= self._window
        weights_Kxn = scores_KGtn.masked_fill_(hidden_tn, -torch.inf).softmax(-1).flatten(1, 2)
        out_Kxd = _wide_products(weights_Kxn.to(v_nKd.dtype), v_nKd.transpose(0, 1))
        out_KGtd = out_Kxd.view(num_kv_heads, -1, num_rows, v_nKd.shape[2])
        out_tHd.copy_(out_KGtd.permute(2, 0, 1, 3).reshape(num_rows, num_heads, -1))


def _fused(
    q_THd: torch.Tensor,
    k_nKd: torch.Tensor,
    v_nKd: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attend by torch's scaled_dot_product_attention; rows are the last ones of the keys."""
    q_1HTd, k_1Knd, v_1Knd = (x.transpose(0, 1)[None] for x in (q_THd, k_nKd, v_nKd))
    out_1HTd = functional.scaled_dot_product_attention(
        q_1HTd, k_1Knd, v_1Knd, attn_mask=mask, scale=scale, enable_gqa=True
    )
    return out_1HTd[0].transpose(0, 1)


def _wide_products(x_Bmk: torch.Tensor, y_Bkn: torch.Tensor) -> torch.Tensor:
    """Return products by the first dimension, float32."""
    if x_Bmk.device.type == "cuda" and x_Bmk.dtype != torch.float32:
        return torch.bmm(x_Bmk, y_Bkn, out_dtype=torch.float32)
    return torch.bmm(x_Bmk.float(), y_Bkn.float())


def _kernel(name: str) -> Any:  # noqa: ANN401 a module
    """Import a module whose packages are not everywhere."""
    return importlib.import_module(f"stage_worker.kernels.{name}")
