"""Attention whose keys and values are all made from one cached latent vector.

In the absorbed form, queries are moved to where the latents are, and what they attend to is moved
to where values are; to attention, the latent is one head of keys and values. In the expanded form
latents become keys and values of every head, for a chunk of a prompt that is worth it.

Shapes: T rows, D hidden size, H heads, R latent rank, p plain and r turned part of a head,
v value width, d = R + r.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

import torch

from stage_worker.latent_config import LatentConfig
from stage_worker.latent_expansion import LatentExpansion
from stage_worker.layer_weights import LatentWeights
from stage_worker.norm import RmsNorm
from stage_worker.products import add_product, multiply, product, products_by_head
from stage_worker.rope import Rotation, heads, rotate
from stage_worker.step import LastRowsStep, Step
from stage_worker.workspace import Buffers, LatentBuffers

_EPS = 1e-6  # of the norms inside; not the one that config.json states


class LatentProjection:
    """Holds what reads the hidden rows as one matrix, so that they are read once."""

    def __init__(self, weights: LatentWeights, config: LatentConfig) -> None:
        self._weights = weights
        self._config = config
        self._q_norm = None if weights.q_norm_Q is None else RmsNorm(weights.q_norm_Q, _EPS)
        self._latent_norm = RmsNorm(weights.latent_norm_R, _EPS)
        self._expansion = LatentExpansion(weights.key_up_HpR, weights.value_up_HRv, config)

    def project(self, buffers: Buffers, rotation: Rotation) -> None:
        """Fill the buffers' k and their queries from buffers.normed_TD; v is the same as k.

        Queries stay as heads have them; their turned part is where the absorbed form wants it.
        """
        latent = _of(buffers)
        rank = self._config.rank
        entry_TN = product(buffers.normed_TD, self._weights.entry_KN)
        num_q = entry_TN.shape[1] - self._config.cached_dim
        k_T1d = buffers.k_1KTd[0].transpose(0, 1)
        self._latent_norm(entry_TN[:, num_q : num_q + rank], k_T1d[:, 0, :rank])
        k_T1r = entry_TN[:, None, num_q + rank :]
        rotate(heads(k_T1r), rotation, heads(k_T1d[:, :, rank:]))
        self._project_queries(entry_TN[:, :num_q], latent.query_TN)
        rotate(latent.rope, rotation, latent.turned)

    def _project_queries(self, q_TN: torch.Tensor, out_TN: torch.Tensor) -> None:
        if self._q_norm is None or self._weights.q_up_KN is None:
            out_TN.copy_(q_TN)
            return
        self._q_norm(q_TN, q_TN)
        multiply(q_TN, self._weights.q_up_KN, out_TN)

    def attend(self, layer: int, step: Step | LastRowsStep) -> None:
        """Attend in one layer (index in the stage), from the step's queries to its values."""
        buffers, latent = step.buffers, _of(step.buffers)
        for rows in step.absorbed_rows:
            plain_HTp = latent.plain_THp[rows].transpose(0, 1)
            moved_HTR = products_by_head(plain_HTp, self._weights.key_up_HpR)
            buffers.q_THd[rows, :, : self._config.rank].copy_(moved_HTR.transpose(0, 1))
        step.attend(layer)
        for rows in step.absorbed_rows:
            latent_HTR = buffers.attended_THd[rows, :, : self._config.rank].transpose(0, 1)
            value_HTv = products_by_head(latent_HTR, self._weights.value_up_HRv)
            latent.value_THv[rows].copy_(value_HTv.transpose(0, 1))
        for queries in step.expanded:
            queries.attend(layer, self._expansion)

    def add_to(self, hidden_TD: torch.Tensor, buffers: Buffers) -> None:
        """Add what the heads attended to, mixed, to hidden_TD."""
        add_product(hidden_TD, _of(buffers).value_TN, self._weights.o_KN)


def _of(buffers: Buffers) -> LatentBuffers:
    assert buffers.latent is not None, "latent attention needs memory of its own"
    return buffers.latent
