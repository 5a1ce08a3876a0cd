"""The layer stack: each layer's additions to the residual stream ride with the next norm.

Shapes: T rows, D hidden size, n rows that are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stage_worker.kernels.reference import PagedKeysValues
from stage_worker.model_config import ModelConfig
from stage_worker.paged import block_experts
from stage_worker.paged.block_experts import BlockExperts
from stage_worker.paged.feed_forward import Experts, Gated
from stage_worker.paged.heads_attention import HeadsAttention
from stage_worker.paged.latent_attention import LatentAttention
from stage_worker.paged.load_linear import LinearLoader
from stage_worker.paged.operations import Operations
from stage_worker.paged.placed import Placed
from stage_worker.paged.sequences import Sequences
from stage_worker.stored_tensors import StoredTensors


class DecoderLayer:
    """One layer in two halves, because the last layer of a model may drop rows between them."""

    def __init__(
        self,
        raw: StoredTensors,
        config: ModelConfig,
        window: int | None,
        loader: LinearLoader,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._eps = config.rms_norm_eps
        self._attention_norm_D = loader.vector(raw["attention_norm"])
        self._mlp_norm_D = loader.vector(raw["mlp_norm"])
        self._attention: HeadsAttention | LatentAttention
        if config.latent is None:
            self._attention = HeadsAttention(raw, config, window, loader, operations)
        else:
            self._attention = LatentAttention(raw, config, config.latent, loader, operations)
        self._mlp: Gated | Experts | BlockExperts
        if config.experts is not None and "router" in raw:
            is_narrow = block_experts.fit(raw, config.experts, loader)
            kind = BlockExperts if is_narrow else Experts
            self._mlp = kind(raw, config.experts, loader, operations)
        else:
            self._mlp = Gated(raw, "", loader, operations)

    def store(
        self,
        delta_TD: torch.Tensor | None,
        hidden_TD: torch.Tensor,
        placed: Placed,
        cache: PagedKeysValues,
    ) -> torch.Tensor:
        """Add what the layer before left to hidden_TD; fill the pages; return the queries."""
        normed_TD = self._add_norm(delta_TD, hidden_TD, self._attention_norm_D)
        return self._attention.store(normed_TD, placed, cache)

    def attend(
        self,
        q_THd: torch.Tensor,
        hidden_TD: torch.Tensor,
        runs: tuple[Sequences, ...],
        cache: PagedKeysValues,
    ) -> torch.Tensor:
        """Add what queries attend to to hidden_TD; return what is still to be added, [T, D]."""
        delta_TD = self._attention.attend(q_THd, runs, cache)
        return self._mlp(self._add_norm(delta_TD, hidden_TD, self._mlp_norm_D))

    def _add_norm(
        self, delta_TD: torch.Tensor | None, hidden_TD: torch.Tensor, weight_D: torch.Tensor
    ) -> torch.Tensor:
        shape, scratch = tuple(hidden_TD.shape), self._operations.scratch
        normed_TD = scratch.take("normed", shape, hidden_TD.dtype)
        self._operations.fused.add_norm(delta_TD, hidden_TD, weight_D, self._eps, normed_TD)
        return normed_TD


def run_layers(
    layers: Sequence[DecoderLayer],
    caches: Sequence[PagedKeysValues],
    hidden_TD: torch.Tensor,
    placed: Placed,
) -> torch.Tensor:
    """Run all layers on hidden_TD in place and return it.

    With placed.last the result holds only those rows.
    """
    delta_TD: torch.Tensor | None = None
    for layer, cache in zip(layers, caches, strict=True):
        q_THd = layer.store(delta_TD, hidden_TD, placed, cache)
        runs = placed.runs
        if layer is layers[-1] and placed.last is not None:
            hidden_TD = hidden_TD.index_select(0, placed.last.rows_n)
            q_THd = q_THd.index_select(0, placed.last.rows_n)
            runs = placed.last.runs
            if not runs:
                return hidden_TD
        delta_TD = layer.attend(q_THd, hidden_TD, runs, cache)
    assert delta_TD is not None, "a stage has layers"
    return hidden_TD.add_(delta_TD)
