"""Finds model and latency for a plan: built-in ones, files, and tables of measured layers.

Reads files; what stands in them is checked by who parses it.
"""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from chunkmesh.errors import ConfigError, reason_of
from chunkmesh.json_text import parse_json
from scheduler.latency_file import LatencyFile, first_fault, parse_latency_file
from scheduler.latency_fit import LatencyPoint, fit_latency
from scheduler.latency_model import StageLatency, Work
from scheduler.planning.known_shapes import KNOWN_CONFIGS, known_shape
from scheduler.planning.latency_scaling import MeasuredLayer
from scheduler.planning.model_latency import EdgeLatency, ModelLatency, short_name
from scheduler.planning.model_shape import ModelShape
from scheduler.planning.shape_config import parse_shape

BUILT_IN = "h200-qwen3-8b"
"""Name of the latency that comes with the package."""
PRODUCTS = "products"
"""Name of the latency of no device: shares of layers and head, for splitting a model."""
_DEFAULT_MODEL = "qwen3-8b"
_H200_BYTES_PER_S = 4.0e12
"""Five sixths of the 4.8 TB/s of its data sheet, as large copies reach."""
_MAX_CHARACTERS = 1 << 22
"""Of a file; it is not read any further."""
_MAX_TABLE_CHARACTERS = 1 << 20
_MAX_TOKENS = 1 << 24

_Row: TypeAlias = tuple[
    Annotated[int, Field(ge=1, le=_MAX_TOKENS)],
    Annotated[int, Field(ge=0, le=_MAX_TOKENS)],
    Annotated[float, Field(ge=1e-6, le=1e9)],
]
_TABLE = TypeAdapter(list[_Row], config=ConfigDict(strict=True))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is planned for."""

    name: str
    shape: ModelShape | None
    """None if only times are known; then bytes are not."""
    latency: ModelLatency

    @property
    def context_tokens(self) -> int | None:
        """Longest prompt and output together that the model was made for, if it says so."""
        return None if self.shape is None else self.shape.context_tokens


def find_subject(model: str | None, latency: str) -> Subject:
    """Join a model, by name or folder, with a latency, by name or file.

    Without a model it is the one that the latency was measured on.

    Raises:
        ConfigError: one is not there or not sound, or they do not fit each other.
    """
    if latency in {BUILT_IN, PRODUCTS}:
        shape, measured = read_shape(_DEFAULT_MODEL if model is None else model), built_in_layer()
        times = measured.model_latency if latency == BUILT_IN else measured.products_alone
        return Subject(name=shape.name, shape=shape, latency=times(shape))
    path = Path(latency)
    text = _read(path, f"--latency-model {latency}: neither {BUILT_IN} nor {PRODUCTS} nor a file")
    if text.lstrip().startswith("["):
        shape = read_shape(_DEFAULT_MODEL if model is None else model)
        layer = _fit_table(text, path)
        table = ModelLatency(
            layers=(layer,) * shape.num_layers,
            edges=EdgeLatency(),
            origin=f"fit of the table {path.name}",
            is_estimate=False,
        )
        return Subject(name=shape.name, shape=shape, latency=table)
    return _of_file(model, parse_latency_file(text, name=f"--latency-model {path}"))


def read_shape(model: str) -> ModelShape:
    """Return the shape of a known name, of a model folder or of a config.json.

    A name may have its owner before it, as on a hub: Qwen/Qwen3-32B.

    Raises:
        ConfigError: it is none of them, or the file is not sound.
    """
    path = Path(model)
    shape = known_shape(model.lower())
    if shape is None and model.count("/") == 1 and not path.exists():
        shape = known_shape(path.name.lower())
    if shape is not None:
        return shape
    path = path / "config.json" if path.is_dir() else path
    known = ", ".join(KNOWN_CONFIGS)
    text = _read(path, f"--model {model}: neither a model folder nor one of {known}")
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"--model: {path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"--model: {path} must hold a JSON object, not {type(fields).__name__}")
    return dataclasses.replace(parse_shape(fields, name=f"--model {path}"), name=model)


def built_in_layer() -> MeasuredLayer:
    """Return the layer whose times come with the package."""
    text = resources.files(__package__).joinpath("data", f"{BUILT_IN}.json").read_text("ascii")
    file = parse_latency_file(text, name=BUILT_IN)
    shape = known_shape(file.model)
    assert shape is not None
    return MeasuredLayer(
        latency=file.stages[0].latency,
        shape=shape.layers[0],
        model=file.model,
        device=file.device,
        memory_bytes_per_s=_H200_BYTES_PER_S,
    )


def _of_file(model: str | None, file: LatencyFile) -> Subject:
    """Use measured stages as they are; the model must have as many layers."""
    latency = ModelLatency.of_file(file)
    shape = known_shape(file.model) if model is None else read_shape(model)
    if model is None and shape is not None and shape.num_layers != latency.num_layers:
        shape = None
    if file.stages[0].first_layer:
        raise ConfigError(
            f"--latency-model begins at layer {file.stages[0].first_layer}, must begin at layer 0"
        )
    if shape is not None and shape.num_layers != latency.num_layers:
        raise ConfigError(
            f"--latency-model has {latency.num_layers} layers,"
            f" but --model {model} has {shape.num_layers}"
        )
    name = shape.name if shape else short_name(file.model)
    return Subject(name=name, shape=shape, latency=latency)


def _fit_table(text: str, path: Path) -> StageLatency:
    """Fit the times of one layer: rows of [tokens, tokens before them, ms]."""
    if len(text) > _MAX_TABLE_CHARACTERS:
        raise ConfigError(
            f"--latency-model {path} has {len(text)} characters,"
            f" at most {_MAX_TABLE_CHARACTERS} are read"
        )
    try:
        rows = _TABLE.validate_json(text)
    except ValidationError as error:
        raise ConfigError(
            f"--latency-model {path}: a table has rows of [tokens, tokens before, ms];"
            f" {first_fault(error)}"
        ) from error
    fit = fit_latency(
        [
            LatencyPoint(work=Work.of_chunk(before, before + tokens), ms=ms)
            for tokens, before, ms in rows
        ]
    )
    if fit.latency is None or fit.refused is not None:
        raise ConfigError(f"--latency-model {path}: {fit.refused}")
    return fit.latency


def _read(path: Path, missing: str) -> str:
    """Return a file's text."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except FileNotFoundError:
        raise ConfigError(missing) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {reason_of(error)}") from error
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"cannot read {path}: it has more than {_MAX_CHARACTERS} characters")
    return text
