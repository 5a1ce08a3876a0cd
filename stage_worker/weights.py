"""Loads the weights of one stage; digests are taken from the checkpoint's own bytes on the way.

Shapes: D hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog
import torch

from stage_worker.checkpoint import Checkpoint
from stage_worker.dummy_weights import DummyWeights
from stage_worker.element_type import DTYPES
from stage_worker.kernels.weight_blocks import quantise_blocks
from stage_worker.layer_weights import merge_outputs
from stage_worker.model_config import ModelConfig
from stage_worker.stored_tensors import StoredTensors, scale_spec
from stage_worker.tensor_specs import (
    TensorSpec,
    embedding_spec,
    head_specs,
    is_product,
    layer_specs,
)
from stage_worker.weight_choice import LoadFormat, ServedModel
from stage_worker.weight_digest import WeightDigest

_log = structlog.get_logger(__name__)

Progress = Callable[[int, int], None]
"""Called with parts loaded and parts in all."""
LayerT = TypeVar("LayerT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Generic[LayerT]):
    """Where weights go, and what is made of those of a layer."""

    dtype: torch.dtype
    device: torch.device
    lay_out: Callable[[StoredTensors, ModelConfig], LayerT]
    """Copies a layer's tensors out of their files."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeadWeights:
    """What turns the last hidden state into logits."""

    norm_D: torch.Tensor
    head_DV: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights(Generic[LayerT]):
    """All weights of a stage and their digests."""

    embedding_VD: torch.Tensor | None
    """First stage only."""
    layers: tuple[LayerT, ...]
    head: HeadWeights | None
    """Last stage only."""
    layer_digests: tuple[bytes, ...]
    embedding_digest: bytes
    """Empty if not held."""
    head_digest: bytes
    """Empty if not held."""


def load_weights(
    model_path: pathlib.Path,
    model: ServedModel,
    *,
    layers: range,
    layout: Layout[LayerT],
    load_format: LoadFormat,
    progress: Progress,
) -> StageWeights[LayerT]:
    """Load layers, plus the embedding with the first layer and the head with the last.

    Raises:
        ConfigError: a file or a tensor is missing, of the wrong shape, unknown or held twice.
    """
    config = model.config
    is_first, is_last = layers.start == 0, layers.stop == config.num_layers
    num_parts = len(layers) + is_first + is_last
    if load_format == "dummy":
        _log.warning("dummy weights", model_path=str(model_path))
    with _open(model_path, load_format, layout.device) as checkpoint:
        reader = _Reader(checkpoint, layout, model)
        embedding = reader.embedding(config) if is_first else None
        progress(int(is_first), num_parts)
        loaded = []
        for layer in layers:
            loaded.append(reader.layer(config, layer))
            progress(is_first + len(loaded), num_parts)
        head = reader.head(config, embedding[0] if embedding else None) if is_last else None
        checkpoint.check_accounted(frozenset(reader.names), layers.start, layers.stop)
        if is_last and (beyond := checkpoint.layers_from(config.num_layers)):
            _log.info("layers skipped", layers=beyond, why="they predict further tokens")
    progress(num_parts, num_parts)
    return StageWeights(
        embedding_VD=embedding[0] if embedding else None,
        layers=tuple(weights for weights, _ in loaded),
        head=head[0] if head else None,
        layer_digests=tuple(digest for _, digest in loaded),
        embedding_digest=embedding[1] if embedding else b"",
        head_digest=head[1] if head else b"",
    )


def own_dtype(
    model_path: pathlib.Path, config: ModelConfig, *, first_layer: int, load_format: LoadFormat
) -> torch.dtype:
    """Return the type that a model was made for: as config.json states, or as it is stored.

    Of stored types the largest tensor's counts, norms may be wider; float32 if all have eight bits.

    Raises:
        ConfigError: a file is missing.
    """
    if config.dtype is not None:
        return DTYPES[config.dtype]
    with _open(model_path, load_format, torch.device("cpu")) as checkpoint:
        specs = layer_specs(config, first_layer)
        largest_first = sorted(specs, key=lambda spec: math.prod(spec.shape), reverse=True)
        dtypes = map(checkpoint.stored_dtype, largest_first)
        return next((dtype for dtype in dtypes if dtype is not None), torch.float32)


def _open(
    model_path: pathlib.Path, load_format: LoadFormat, device: torch.device
) -> Checkpoint | DummyWeights:
    return Checkpoint(model_path) if load_format == "auto" else DummyWeights(device)


class _Reader(Generic[LayerT]):
    """Reads parts of the model, each with its digest, and copies them out of the files."""

    def __init__(
        self,
        checkpoint: Checkpoint | DummyWeights,
        layout: Layout[LayerT],
        model: ServedModel,
    ) -> None:
        self.names: set[str] = set()
        """Tensors read so far."""
        self._checkpoint = checkpoint
        self._layout = layout
        self._block = model.config.fp8_block
        self._at_load = model.at_load

    def layer(self, config: ModelConfig, layer: int) -> tuple[LayerT, bytes]:
        raw, digest = self._read(layer_specs(config, layer))
        return self._layout.lay_out(raw, config), digest

    def embedding(self, config: ModelConfig) -> tuple[torch.Tensor, bytes]:
        raw, digest = self._read((embedding_spec(config),))
        return self._copy(raw["embedding"]), digest

    def head(
        self, config: ModelConfig, embedding_VD: torch.Tensor | None
    ) -> tuple[HeadWeights, bytes]:
        """Lay out the head; a stage that holds the tied embedding as well keeps one copy.

        A head of its own in the checkpoint goes before what config.json says of ties.
        """
        _, own = head_specs(config, tied=False)
        tied = config.tie_word_embeddings and not self._checkpoint.holds(own)
        raw, digest = self._read(head_specs(config, tied=tied))
        norm_D = self._copy(raw["final_norm"])
        if tied and embedding_VD is not None:
            return HeadWeights(norm_D=norm_D, head_DV=embedding_VD.t()), digest
        head_DV = merge_outputs([raw["head"]], self._layout.dtype, self._layout.device)
        return HeadWeights(norm_D=norm_D, head_DV=head_DV), digest

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._layout.device, self._layout.dtype, copy=True)

    def _read(self, specs: tuple[TensorSpec, ...]) -> tuple[StoredTensors, bytes]:
        digest = WeightDigest()
        stored = StoredTensors(self._block)
        for spec in specs:
            tensor = self._read_one(spec, digest)
            scales = scale_spec(spec, tensor.dtype, self._block)
            scale_nk = self._read_one(scales, digest) if scales else None
            if scale_nk is None and self._at_load and self._block and is_product(spec):
                tensor, scale_nk = quantise_blocks(tensor.to(self._layout.device), self._block)
            stored.put(spec.role, tensor, scale_nk)
        return stored, digest.digest()

    def _read_one(self, spec: TensorSpec, digest: WeightDigest) -> torch.Tensor:
        tensor = self._checkpoint.read(spec)
        digest.add(spec.name, tensor)
        self.names.add(spec.name)
        return tensor
