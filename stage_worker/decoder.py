"""The layer stack: each layer adds attention and a feed-forward block to the residual stream.

Shapes: T rows, D hidden size, n rows that are sampled.
"""

from __future__ import annotations

import torch

from stage_worker.experts import Experts
from stage_worker.heads_projection import HeadsProjection
from stage_worker.latent_projection import LatentProjection
from stage_worker.layer_weights import (
    ExpertsWeights,
    GatedWeights,
    HeadsWeights,
    LatentWeights,
    LayerWeights,
)
from stage_worker.mlp import GatedMlp
from stage_worker.model_config import ModelConfig
from stage_worker.norm import RmsNorm
from stage_worker.step import LastRowsStep, Step


class DecoderLayer:
    """One layer in two halves, because the last layer of a model may drop rows between them."""

    def __init__(self, weights: LayerWeights, config: ModelConfig) -> None:
        self._attention_norm = RmsNorm(weights.attention_norm_D, config.rms_norm_eps)
        self._projection = _projection(weights.attention, config)
        self._mlp_norm = RmsNorm(weights.mlp_norm_D, config.rms_norm_eps)
        self._mlp = _feed_forward(weights.mlp, config)

    def write_kv(self, layer: int, hidden_TD: torch.Tensor, step: Step) -> None:
        """Compute queries, keys and values and put the latter two into the pool."""
        self._attention_norm(hidden_TD, step.buffers.normed_TD)
        self._projection.project(step.buffers, step.rotation)
        step.write_kv(layer)

    def add_to(self, layer: int, hidden_TD: torch.Tensor, step: Step | LastRowsStep) -> None:
        """Attend with the queries of write_kv and add both blocks to hidden_TD."""
        self._projection.attend(layer, step)
        self._projection.add_to(hidden_TD, step.buffers)
        self._mlp_norm(hidden_TD, step.buffers.normed_TD)
        self._mlp.add_to(hidden_TD, step.buffers)


def _projection(
    weights: HeadsWeights | LatentWeights, config: ModelConfig
) -> HeadsProjection | LatentProjection:
    if isinstance(weights, HeadsWeights):
        return HeadsProjection(weights, config.rms_norm_eps)
    assert config.latent is not None, "latent weights without their widths"
    return LatentProjection(weights, config.latent)


def _feed_forward(
    weights: GatedWeights | ExpertsWeights, config: ModelConfig
) -> GatedMlp | Experts:
    if isinstance(weights, GatedWeights):
        return GatedMlp(weights)
    assert config.experts is not None, "expert weights without routing"
    return Experts(weights, config.experts)


class Decoder:
    """The layers of a stage, in order."""

    def __init__(self, layers: tuple[LayerWeights, ...], config: ModelConfig) -> None:
        self._layers = tuple(DecoderLayer(weights, config) for weights in layers)

    def run(
        self, hidden_TD: torch.Tensor, step: Step, last_rows: LastRowsStep | None
    ) -> torch.Tensor:
        """Run all layers on hidden_TD in place and return it.

        With last_rows the result holds only the rows of last_rows.
        """
        final = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            layer.write_kv(index, hidden_TD, step)
            if index == final and last_rows is not None:
                hidden_nD = last_rows.take_rows(step, hidden_TD)
                layer.add_to(index, hidden_nD, last_rows)
                return hidden_nD
            layer.add_to(index, hidden_TD, step)
        return hidden_TD
