"""Loads a stage whose weights, pages and activations are on one device."""

from __future__ import annotations

import dataclasses
import pathlib

import torch

from stage_worker.element_type import DtypeChoice, choose_dtype
from stage_worker.loading import describe, read_config
from stage_worker.model_config import ModelConfig
from stage_worker.paged.backends import choose
from stage_worker.paged.decoder import DecoderLayer
from stage_worker.paged.load_linear import LinearLoader
from stage_worker.paged.stage import PagedStage
from stage_worker.stored_tensors import StoredTensors
from stage_worker.weight_choice import STORED, WeightChoice
from stage_worker.weights import Layout, Progress, load_weights, own_dtype


def load_paged_stage(
    model_path: pathlib.Path,
    *,
    layers: range,
    device: torch.device,
    dtype: DtypeChoice = "auto",
    choice: WeightChoice = STORED,
    progress: Progress = lambda _done, _total: None,
) -> PagedStage:
    """Load layers [layers.start, layers.stop) of a model folder onto a device; blocks for seconds.

    A dtype of auto is the model's own, but bfloat16 for a float32 model on a GPU. progress is
    called from this thread with parts loaded and parts in all.

    Raises:
        ConfigError: the range is not in the model, or the folder cannot be served.
    """
    model = choice.served(read_config(model_path, layers))
    config = model.config
    own = own_dtype(model_path, config, first_layer=layers.start, load_format=choice.load_format)
    if dtype == "auto" and own == torch.float32 and device.type == "cuda":
        dtype = "bfloat16"
    compute_dtype = choose_dtype(dtype, own=own, declared=config.dtype)
    chosen = choose(
        config, dtype=compute_dtype, device=device, wants_fp8=config.fp8_block is not None
    )
    loader = LinearLoader(chosen.operations)
    windows = iter(config.windows[layers.start : layers.stop])

    def lay_out(raw: StoredTensors, config: ModelConfig) -> DecoderLayer:
        return DecoderLayer(raw, config, next(windows), loader, chosen.operations)

    weights = load_weights(
        model_path,
        model,
        layers=layers,
        layout=Layout(dtype=compute_dtype, device=device, lay_out=lay_out),
        load_format=choice.load_format,
        progress=progress,
    )
    description = describe(
        config,
        layers,
        weights,
        dtype=compute_dtype,
        device=device,
        backends=(*chosen.backends, *model.backends()),
    )
    description = dataclasses.replace(
        description, chunk_alignment_tokens=chosen.chunk_alignment_tokens
    )
    return PagedStage(config, description, weights, chosen.operations)
