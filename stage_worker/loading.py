"""What all ways of loading a stage share: which model it is, and what is told of the stage."""

from __future__ import annotations

import pathlib

import torch

from chunkmesh.errors import ConfigError
from stage_worker.model_config import ModelConfig, read_model_config
from stage_worker.stage import Backend, StageDescription
from stage_worker.weights import LayerT, StageWeights


def read_config(model_path: pathlib.Path, layers: range) -> ModelConfig:
    """Read the config.json of a model that has these layers.

    Raises:
        ConfigError: the range is not in the model, or the model cannot be served.
    """
    config = read_model_config(model_path)
    if layers.step != 1 or not 0 <= layers.start < layers.stop <= config.num_layers:
        raise ConfigError(
            f"layers {layers.start}-{layers.stop - 1} are not in the model: it has "
            f"{config.num_layers} layers, 0-{config.num_layers - 1}"
        )
    return config


def describe(
    config: ModelConfig,
    layers: range,
    weights: StageWeights[LayerT],
    *,
    dtype: torch.dtype,
    device: torch.device,
    backends: tuple[Backend, ...],
) -> StageDescription:
    """Say what a loaded stage is."""
    kv_numbers = config.num_planes * config.num_kv_heads * config.head_dim
    return StageDescription(
        first_layer=layers.start,
        last_layer=layers.stop,
        model_layers=config.num_layers,
        hidden_size=config.hidden_size,
        dtype=dtype,
        kv_bytes_per_token=len(layers) * kv_numbers * dtype.itemsize,
        layer_digests=weights.layer_digests,
        embedding_digest=weights.embedding_digest,
        head_digest=weights.head_digest,
        config_digest=config.digest(),
        device=str(device),
        hardware=_hardware(device),
        vocab_size=config.vocab_size,
        backends=backends,
    )


def _hardware(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return torch.cuda.get_device_name(device)
