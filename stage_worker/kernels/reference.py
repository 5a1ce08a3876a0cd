"""What the kernels compute, in plain torch on any device: their definition, and the CPU's path.

Sums are in float32, or in the input's type if that is wider. Outputs go to tensors of the caller.

Shapes: T rows, D width, I half of a gated width, B sequences, H query heads, K kv heads, G = H / K,
d head_dim, h = d / 2, J all heads of a merged projection (H + 2K), P pages, N tokens of a page,
p pages of a table, g groups of GROUP_WIDTH columns.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch

GROUP_WIDTH = 128
"""Columns of a row that share a scale."""
FP8_MAX = 448.0
LEAST_SCALE = 1e-10
"""Keeps a group of zeros from dividing by zero."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PagedKeysValues:
    """Keys and values of one layer, each [P, N, K, d] and contiguous."""

    k_PNKd: torch.Tensor
    v_PNKd: torch.Tensor

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self.k_PNKd.shape[1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PagedContexts:
    """Which keys each sequence sees."""

    page_table_Bp: torch.Tensor
    """int32; ids behind a sequence's last page may be anything."""
    num_keys_B: torch.Tensor
    """int32, >= 1, the sequence's own new token included."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Angles:
    """How far each row is turned, float32 [T, h]."""

    cos_Th: torch.Tensor
    sin_Th: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """Root mean square norms of single heads, before they are turned."""

    q_d: torch.Tensor
    k_d: torch.Tensor
    eps: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatentParts:
    """What becomes of projected latents: they are normalised, and their keys are turned."""

    norm_R: torch.Tensor
    """R is the latent's rank."""
    eps: float
    interleaved: bool
    """Neighbours (2i, 2i + 1) are turned and come to lie apart, instead of halves."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueryRows:
    """Where each sequence's rows are; they are its last positions."""

    begins_B1: torch.Tensor
    """int32 [B + 1]: first row of each sequence, then T."""
    longest: int
    """Most rows of one sequence."""


def paged_prefill(
    q_THd: torch.Tensor,
    rows: QueryRows,
    cache: PagedKeysValues,
    contexts: PagedContexts,
    scale: float,
) -> torch.Tensor:
    """Return what each row attended to: its sequence's keys up to its own position."""
    out_THd = torch.empty_like(q_THd)
    begins = rows.begins_B1.tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(begins)):
        k_nKd, v_nKd = _context(row, cache, contexts, _wide(q_THd))
        q_TKGd = (
            q_THd[begin:end].to(k_nKd.dtype).view(end - begin, k_nKd.shape[1], -1, q_THd.shape[2])
        )
        scores_KGTn = torch.einsum("TKGd,nKd->KGTn", q_TKGd * scale, k_nKd)
        hidden_Tn = torch.ones(scores_KGTn.shape[-2:], dtype=torch.bool, device=q_THd.device)
        scores_KGTn.masked_fill_(hidden_Tn.triu(len(k_nKd) - (end - begin) + 1), -math.inf)
        attended = torch.einsum("KGTn,nKd->TKGd", scores_KGTn.softmax(-1), v_nKd)
        out_THd[begin:end] = attended.flatten(1, 2)
    return out_THd


def paged_decode(
    q_BHd: torch.Tensor,
    cache: PagedKeysValues,
    contexts: PagedContexts,
    out_BHd: torch.Tensor,
    scale: float,
) -> None:
    """Attend with one query row of each sequence to all of its keys.

    Values may be narrower than keys.
    """
    for row in range(len(q_BHd)):
        k_nKd, v_nKd = _context(row, cache, contexts, _wide(q_BHd))
        q_KGd = q_BHd[row].to(k_nKd.dtype).view(k_nKd.shape[1], -1, q_BHd.shape[2])
        weights_KGn = torch.einsum("KGd,nKd->KGn", q_KGd * scale, k_nKd).softmax(-1)
        out_BHd[row] = torch.einsum("KGn,nKd->KGd", weights_KGn, v_nKd).flatten(0, 1)


def sequences_prefill(
    q_THd: torch.Tensor,
    rows: QueryRows,
    k_nHd: torch.Tensor,
    v_nHe: torch.Tensor,
    num_keys_B: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Do what paged_prefill does; keys and values of sequences lie behind one another.

    Values may have another width e.
    """
    parts = []
    begins, first_key = rows.begins_B1.tolist(), 0
    for (begin, end), num_keys in zip(itertools.pairwise(begins), num_keys_B.tolist(), strict=True):
        keys = slice(first_key, first_key + num_keys)
        k_nHd_own, v_nHe_own = (x_nHd[keys].to(_wide(q_THd)) for x_nHd in (k_nHd, v_nHe))
        scores_HTn = torch.einsum("THd,nHd->HTn", q_THd[begin:end].to(k_nHd_own.dtype), k_nHd_own)
        hidden_Tn = torch.ones(scores_HTn.shape[1:], dtype=torch.bool, device=q_THd.device)
        scores_HTn.mul_(scale).masked_fill_(hidden_Tn.triu(num_keys - (end - begin) + 1), -math.inf)
        parts.append(torch.einsum("HTn,nHe->THe", scores_HTn.softmax(-1), v_nHe_own))
        first_key += num_keys
    return torch.cat(parts).to(q_THd.dtype)


def add_norm(
    delta_TD: torch.Tensor | None,
    hidden_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    out_TD: torch.Tensor,
) -> None:
    """Add delta, if any, to the residual stream in place; write its RMS norm to out."""
    if delta_TD is not None:
        hidden_TD += delta_TD
    out_TD.copy_(_norm(hidden_TD, weight_D, eps))


def rope_store(
    qkv_TJd: torch.Tensor,
    angles: Angles,
    norms: HeadNorms | None,
    cache: PagedKeysValues,
    slots_T: torch.Tensor,
    q_THd: torch.Tensor,
) -> None:
    """Split a merged projection: turned queries to q, turned keys and values to their slots.

    Slots are int64, page * N + offset, each once; rows with a negative slot are not stored.
    """
    num_heads, num_kv_heads = q_THd.shape[1], cache.k_PNKd.shape[2]
    q, k, v = torch.split(qkv_TJd, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    if norms is not None:
        q, k = _norm(q, norms.q_d, norms.eps), _norm(k, norms.k_d, norms.eps)
    q_THd.copy_(_turn(q, angles))
    kept = slots_T >= 0
    slots = slots_T[kept]
    cache.k_PNKd.flatten(0, 1)[slots] = _turn(k, angles)[kept].to(cache.k_PNKd.dtype)
    cache.v_PNKd.flatten(0, 1)[slots] = v[kept].to(cache.v_PNKd.dtype)


def latent_store(
    latent_Td: torch.Tensor,
    angles: Angles,
    parts: LatentParts,
    cache: PagedKeysValues,
    slots_T: torch.Tensor,
) -> None:
    """Write normalised latents, and turned keys behind them, to their slots; see rope_store."""
    rank = len(parts.norm_R)
    normed_T1R = _norm(latent_Td[:, None, :rank], parts.norm_R, parts.eps)
    turned_T1r = _turn(_halves(latent_Td[:, None, rank:], parts), angles)
    kept = slots_T >= 0
    stored_T1d = torch.cat((normed_T1R, turned_T1r), dim=2)
    cache.k_PNKd.flatten(0, 1)[slots_T[kept]] = stored_T1d[kept].to(cache.k_PNKd.dtype)


def turn_queries(
    q_TN: torch.Tensor, angles: Angles, parts: LatentParts, q_THq: torch.Tensor
) -> None:
    """Write heads, of which the last columns are turned, to q."""
    q_THq.copy_(q_TN.view(q_THq.shape))
    plain = q_THq.shape[2] - 2 * angles.cos_Th.shape[1]
    rope_THr = q_THq[:, :, plain:]
    rope_THr.copy_(_turn(_halves(rope_THr, parts), angles))


def gated_silu(gate_up_TI: torch.Tensor, out_TI: torch.Tensor) -> None:
    """Write silu(first half of the columns) * second half."""
    gate_TI, up_TI = gate_up_TI.to(_wide(gate_up_TI)).chunk(2, dim=-1)
    out_TI.copy_(torch.nn.functional.silu(gate_TI) * up_TI)


def quantise(x_TD: torch.Tensor, out_TD: torch.Tensor, scale_Tg: torch.Tensor) -> None:
    """Write x as float8_e4m3fn with one float32 scale for each group of a row."""
    x_Tgw = _groups(x_TD)
    scale_Tg.copy_((x_Tgw.abs().amax(-1) / FP8_MAX).clamp(min=LEAST_SCALE))
    out_TD.copy_((x_Tgw / scale_Tg.unsqueeze(-1)).flatten(1).to(out_TD.dtype))


def dequantise(q_TD: torch.Tensor, scale_Tg: torch.Tensor) -> torch.Tensor:
    """Return what quantised rows stand for, in float32."""
    return (_groups(q_TD) * scale_Tg.unsqueeze(-1)).flatten(1)


def _context(
    row: int, cache: PagedKeysValues, contexts: PagedContexts, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of one sequence, each [n, K, d]."""
    num_keys = int(contexts.num_keys_B[row])
    pages = contexts.page_table_Bp[row, : -(-num_keys // cache.page_tokens)].long()
    k_nKd, v_nKd = (
        both[pages].flatten(0, 1)[:num_keys].to(dtype) for both in (cache.k_PNKd, cache.v_PNKd)
    )
    return k_nKd, v_nKd


def _groups(x_TD: torch.Tensor) -> torch.Tensor:
    """Return the numbers that share a scale apart, float32 [T, g, 128]."""
    return x_TD.float().view(len(x_TD), -1, GROUP_WIDTH)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise the last dimension; the result has the type of the sums."""
    x = x.to(_wide(x))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(x.dtype)


def _turn(x_THd: torch.Tensor, angles: Angles) -> torch.Tensor:
    low, high = x_THd.to(_wide(x_THd)).chunk(2, dim=-1)
    cos_T1h, sin_T1h = angles.cos_Th[:, None], angles.sin_Th[:, None]
    return torch.cat((low * cos_T1h - high * sin_T1h, high * cos_T1h + low * sin_T1h), dim=-1)


def _halves(x_THr: torch.Tensor, parts: LatentParts) -> torch.Tensor:
    """Return heads whose pairs lie half a head apart."""
    if not parts.interleaved:
        return x_THr
    return torch.cat((x_THr[..., 0::2], x_THr[..., 1::2]), dim=-1)


def _wide(x: torch.Tensor) -> torch.dtype:
    """Return the type for sums over x."""
    return torch.promote_types(x.dtype, torch.float32)
