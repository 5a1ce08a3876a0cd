"""Attention whose keys and values are all made from one cached latent vector, in its absorbed form.

Queries are moved to where the latents are, and what they attend to is moved to where values are;
to attention the latent is one head of keys and values.

Shapes: T rows, D hidden size, H heads, R latent rank, p plain and r turned part of a head,
v value width, d = R + r.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

import math

import torch

from stage_worker.kernels.reference import Angles, PagedKeysValues
from stage_worker.latent_config import LatentConfig
from stage_worker.layer_weights import turn_halves
from stage_worker.model_config import ModelConfig
from stage_worker.paged.linear import FullLinear, Linear
from stage_worker.paged.load_linear import LinearLoader
from stage_worker.paged.operations import Operations
from stage_worker.paged.placed import Placed
from stage_worker.paged.sequences import Sequences
from stage_worker.stored_tensors import StoredTensors

_EPS = 1e-6  # of the norms inside; not the one that config.json states


class LatentAttention:
    """Projection, attention and mixing of one layer."""

    def __init__(
        self,
        raw: StoredTensors,
        config: ModelConfig,
        latent: LatentConfig,
        loader: LinearLoader,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._config = latent
        self._num_heads = config.num_heads
        scale = math.sqrt(config.head_dim / (latent.plain_dim + latent.rope_dim))
        q_NK = raw["q_b" if latent.query_rank else "q"].float()
        q_NK = q_NK * (scale * config.rope.score_factor)
        q_HnK = q_NK.view(config.num_heads, latent.plain_dim + latent.rope_dim, -1)
        q_NK = turn_halves(q_HnK, latent).reshape(q_NK.shape)
        kv_a_NK = turn_halves(raw["kv_a"].float()[None], latent)[0]
        self._q_norm_Q: torch.Tensor | None = None
        self._q_up: Linear | None = None
        entry_parts = [q_NK, kv_a_NK]
        if latent.query_rank is not None:
            self._q_norm_Q = loader.vector(raw["q_norm"])
            self._q_up = FullLinear(loader.full([q_NK]))
            entry_parts[0] = raw["q_a"]
        self._entry = FullLinear(loader.full(entry_parts))
        self._latent_norm_R = loader.vector(raw["latent_norm"])
        kv_b_HnR = loader.full([raw["kv_b"]]).view(config.num_heads, -1, latent.rank)
        self._key_up_HpR = kv_b_HnR[:, : latent.plain_dim].contiguous()
        self._value_up_HRv = kv_b_HnR[:, latent.plain_dim :].transpose(1, 2).contiguous()
        self._o = loader.load(raw, ["o"])

    def store(
        self, normed_TD: torch.Tensor, placed: Placed, cache: PagedKeysValues
    ) -> torch.Tensor:
        """Write the rows' latents to their pages; return the queries [T, H, d]."""
        rank, num_rows = self._config.rank, len(normed_TD)
        entry_TN = normed_TD.new_empty(num_rows, self._entry.num_outputs)
        self._entry(normed_TD, entry_TN)
        num_q = entry_TN.shape[1] - self._config.cached_dim
        latent_TR = self._norm(entry_TN[:, num_q : num_q + rank], self._latent_norm_R)
        key_T1r = _turn(entry_TN[:, None, num_q + rank :], placed.angles)
        slots_S1d = cache.k_PNKd.flatten(0, 1)
        slots_S1d[placed.slots_T] = torch.cat((latent_TR[:, None], key_T1r), dim=2)
        q_THn = self._queries(entry_TN[:, :num_q]).view(num_rows, self._num_heads, -1)
        plain_dim = self._config.plain_dim
        plain_THp, rope_THr = q_THn[:, :, :plain_dim], q_THn[:, :, plain_dim:]
        moved_HTR = torch.bmm(plain_THp.transpose(0, 1), self._key_up_HpR)
        return torch.cat((moved_HTR.transpose(0, 1), _turn(rope_THr, placed.angles)), dim=2)

    def attend(
        self, q_THd: torch.Tensor, runs: tuple[Sequences, ...], cache: PagedKeysValues
    ) -> torch.Tensor:
        """Return what the rows attended to, mixed: [T, D]."""
        operations, num_rows = self._operations, len(q_THd)
        attended_THd = operations.scratch.take("attended", tuple(q_THd.shape), q_THd.dtype)
        for run in runs:
            attention = operations.decode if run.is_decode else operations.prefill
            attention(run.own(q_THd), run, cache, run.own(attended_THd))
        latent_HTR = attended_THd[:, :, : self._config.rank].transpose(0, 1)
        value_HTv = torch.bmm(latent_HTR, self._value_up_HRv)
        value_TN = value_HTv.transpose(0, 1).reshape(num_rows, -1)
        delta_TD = operations.scratch.take("delta", (num_rows, self._o.num_outputs), q_THd.dtype)
        self._o(value_TN, delta_TD)
        return delta_TD

    def _queries(self, q_TN: torch.Tensor) -> torch.Tensor:
        if self._q_norm_Q is None or self._q_up is None:
            return q_TN
        out_TN = q_TN.new_empty(len(q_TN), self._q_up.num_outputs)
        self._q_up(self._norm(q_TN, self._q_norm_Q), out_TN)
        return out_TN

    def _norm(self, x_TN: torch.Tensor, weight_N: torch.Tensor) -> torch.Tensor:
        out_TN = torch.empty_like(x_TN, memory_format=torch.contiguous_format)
        self._operations.fused.add_norm(None, x_TN.contiguous(), weight_N, _EPS, out_TN)
        return out_TN


def _turn(x_THr: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Turn heads by their rows' angles, in float32, rounded once."""
    low, high = x_THr.float().chunk(2, dim=-1)
    cos_T1h, sin_T1h = angles.cos_Th[:, None], angles.sin_Th[:, None]
    turned = torch.cat((low * cos_T1h - high * sin_T1h, high * cos_T1h + low * sin_T1h), dim=-1)
    return turned.to(x_THr.dtype)
