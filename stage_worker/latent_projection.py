"""Attention whose keys and values are all made from one cached latent vector.

Instead of making keys from latents, queries are moved to where the latents are, and what they
attend to is moved to where values are; to attention, the latent is one head of keys and values.

Shapes: T rows, D hidden size, H heads, R latent rank, p plain and r turned part of a head,
v value width, d = R + r.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

import torch

from stage_worker.latent_config import LatentConfig
from stage_worker.layer_weights import LatentWeights
from stage_worker.norm import RmsNorm
from stage_worker.products import add_product, product, products_by_head
from stage_worker.rope import Rotation, heads, rotate
from stage_worker.workspace import Buffers

_EPS = 1e-6  # of the norms inside; not the one that config.json states


class LatentProjection:
    """Holds what reads the hidden rows as one matrix, so that they are read once."""

    def __init__(self, weights: LatentWeights, config: LatentConfig) -> None:
        self._weights = weights
        self._config = config
        self._q_norm = None if weights.q_norm_Q is None else RmsNorm(weights.q_norm_Q, _EPS)
        self._latent_norm = RmsNorm(weights.latent_norm_R, _EPS)

    def project(self, buffers: Buffers, rotation: Rotation) -> None:
        """Fill the buffers' q and k from buffers.normed_TD; v is the same memory as k."""
        rank = self._config.rank
        entry_TN = product(buffers.normed_TD, self._weights.entry_KN)
        num_q = entry_TN.shape[1] - rank - self._config.rope_dim
        k_T1d = buffers.k_1KTd[0].transpose(0, 1)
        self._latent_norm(entry_TN[:, num_q : num_q + rank], k_T1d[:, 0, :rank])
        k_T1r = entry_TN[:, None, num_q + rank :]
        rotate(heads(k_T1r), rotation, heads(k_T1d[:, :, rank:]))
        self._project_queries(entry_TN[:, :num_q], buffers.q_THd, rotation)

    def _project_queries(
        self, q_TN: torch.Tensor, out_THd: torch.Tensor, rotation: Rotation
    ) -> None:
        plain, rank = self._config.plain_dim, self._config.rank
        if self._q_norm is not None and self._weights.q_up_KN is not None:
            self._q_norm(q_TN, q_TN)
            q_TN = product(q_TN, self._weights.q_up_KN)
        q_THn = q_TN.view(len(q_TN), out_THd.shape[1], -1)
        moved_HTR = products_by_head(q_THn[:, :, :plain].transpose(0, 1), self._weights.key_up_HpR)
        out_THd[:, :, :rank].copy_(moved_HTR.transpose(0, 1))
        rotate(heads(q_THn[:, :, plain:]), rotation, heads(out_THd[:, :, rank:]))

    def add_to(self, hidden_TD: torch.Tensor, buffers: Buffers) -> None:
        """Add what the heads attended to, mixed, to hidden_TD."""
        latent_HTR = buffers.attended_THd[:, :, : self._config.rank].transpose(0, 1)
        value_HTv = products_by_head(latent_HTR, self._weights.value_up_HRv)
        add_product(hidden_TD, value_HTv.transpose(0, 1).flatten(1), self._weights.o_KN)
