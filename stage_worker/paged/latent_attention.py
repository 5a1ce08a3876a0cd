"""Attention whose keys and values are all made from one cached latent vector.

In the absorbed form, queries are moved to where the latents are, and what they attend to is moved
to where values are; to attention, the latent is one head of keys and values. In the expanded form
latents become keys and values of every head, for chunks, where a kernel attends to those.

Shapes: T rows, D hidden size, H heads, R latent rank, p plain and r turned part of a head,
q = p + r, v value width, d = R + r.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

import torch

from stage_worker.kernels.reference import LatentParts, PagedKeysValues
from stage_worker.latent_config import LatentConfig
from stage_worker.model_config import ModelConfig
from stage_worker.paged.expanded_latents import ExpandedLatents
from stage_worker.paged.linear import Linear
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
        self._q_norm_Q: torch.Tensor | None = None
        self._q_up: Linear | None = None
        if latent.query_rank is not None:
            self._q_norm_Q = loader.vector(raw["q_norm"])
            self._q_up = loader.load(raw, ["q_b"])
        self._entry = loader.load(raw, ["q" if latent.query_rank is None else "q_a", "kv_a"])
        self._parts = LatentParts(
            norm_R=loader.vector(raw["latent_norm"]), eps=_EPS, interleaved=latent.interleaved
        )
        kv_b_HnR = loader.full([raw["kv_b"]]).view(config.num_heads, -1, latent.rank)
        self._key_up_Hqd = _whole_keys(kv_b_HnR[:, : latent.plain_dim], latent)
        self._value_up_HvR = kv_b_HnR[:, latent.plain_dim :].contiguous()
        self._o = loader.load(raw, ["o"])
        self._expanded: ExpandedLatents | None = None
        if operations.sequences is not None:
            self._expanded = ExpandedLatents(
                self._key_up_Hqd, self._value_up_HvR, operations.sequences, operations
            )

    def store(
        self, normed_TD: torch.Tensor, placed: Placed, cache: PagedKeysValues
    ) -> torch.Tensor:
        """Write the rows' latents to their pages; return the queries [T, H, q]."""
        num_rows, fused = len(normed_TD), self._operations.fused
        take, dtype = self._operations.scratch.take, normed_TD.dtype
        entry_TN = take("projected", (num_rows, self._entry.num_outputs), dtype)
        self._entry(normed_TD, entry_TN)
        num_q = entry_TN.shape[1] - self._config.cached_dim
        fused.latent_store(entry_TN[:, num_q:], placed.angles, self._parts, cache, placed.slots_T)
        width = self._config.plain_dim + self._config.rope_dim
        q_THq = take("turned queries", (num_rows, self._num_heads, width), dtype)
        q_TN = self._queries(entry_TN[:, :num_q])
        fused.turn_queries(q_TN, placed.angles, self._parts, q_THq)
        return q_THq

    def attend(
        self, q_THq: torch.Tensor, runs: tuple[Sequences, ...], cache: PagedKeysValues
    ) -> torch.Tensor:
        """Return what the rows attended to, mixed: [T, D]."""
        take, num_rows = self._operations.scratch.take, len(q_THq)
        shape = (num_rows, self._num_heads, self._config.value_dim)
        value_THv = take("attended", shape, q_THq.dtype)
        for run in runs:
            is_absorbed = run.is_decode or self._expanded is None
            attend = self._absorbed if is_absorbed else self._expanded
            assert attend is not None, "all that is not expanded is absorbed"
            attend(run.own(q_THq), run, cache, run.own(value_THv))
        delta_TD = take("delta", (num_rows, self._o.num_outputs), q_THq.dtype)
        self._o(value_THv.flatten(1), delta_TD)
        return delta_TD

    def _absorbed(
        self, q_THq: torch.Tensor, run: Sequences, cache: PagedKeysValues, out_THv: torch.Tensor
    ) -> None:
        """Attend in the absorbed form."""
        operations, rank, plain = self._operations, self._config.rank, self._config.plain_dim
        plain_HTp = q_THq[:, :, :plain].transpose(0, 1)
        moved_HTR = torch.bmm(plain_HTp, self._key_up_Hqd[:, :plain, :rank])
        moved_THd = torch.cat((moved_HTR.transpose(0, 1), q_THq[:, :, plain:]), dim=2)
        shape = (*q_THq.shape[:2], rank)
        latent_THR = operations.scratch.take("attended latents", shape, q_THq.dtype)
        latents = PagedKeysValues(k_PNKd=cache.k_PNKd, v_PNKd=cache.k_PNKd[..., :rank])
        attention = operations.decode if run.is_decode else operations.prefill
        attention(moved_THd, run, latents, latent_THR)
        value_HTv = torch.bmm(latent_THR.transpose(0, 1), self._value_up_HvR.transpose(1, 2))
        out_THv.copy_(value_HTv.transpose(0, 1))

    def _queries(self, q_TN: torch.Tensor) -> torch.Tensor:
        """Return queries as the checkpoint has them.

        Weights keep its order of rows, as blocks that share a scale would not survive another; so
        it is the queries that are put in order, when they are turned.
        """
        if self._q_norm_Q is None or self._q_up is None:
            return q_TN
        shape = (len(q_TN), self._q_up.num_outputs)
        out_TN = self._operations.scratch.take("queries", shape, q_TN.dtype)
        normed_TN = torch.empty_like(q_TN, memory_format=torch.contiguous_format)
        self._operations.fused.add_norm(None, q_TN.contiguous(), self._q_norm_Q, _EPS, normed_TN)
        self._q_up(normed_TN, out_TN)
        return out_TN


def _whole_keys(key_up_HpR: torch.Tensor, latent: LatentConfig) -> torch.Tensor:
    """Return the way from a cached latent to a head's key, whose turned part is that of the cache.

    So one product makes whole keys, the turned part unchanged to the bit.
    """
    num_heads, plain, rank = key_up_HpR.shape
    rows = plain + latent.rope_dim
    key_up_Hqd = key_up_HpR.new_zeros(num_heads, rows, latent.cached_dim)
    key_up_Hqd[:, :plain, :rank] = key_up_HpR
    key_up_Hqd[:, plain:, rank:] = torch.eye(latent.rope_dim)
    return key_up_Hqd
