"""What the scheduler must know of the model: read from config.json, without weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from chunkmesh.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The part of a Hugging Face config that planning and the door need."""

    architecture: str
    num_layers: int
    vocab_size: int
    context_length: int
    """Longest prompt and output together, in tokens."""
    rope: str
    """Canonical text of the rope settings, part of the key of cached pages."""


def read_model_info(folder: Path, context_length: int | None) -> ModelInfo:
    """Read config.json of a model folder; context_length overrides the model's own.

    Raises:
        ConfigError: the file or a field is missing or wrong; names it.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"no model at {folder}: {path.name} is missing; --model-path takes a Hugging Face folder"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not a JSON object")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ConfigError(f"{path} names no architecture")
    return ModelInfo(
        architecture=str(architectures[0]),
        num_layers=_positive(config, "num_hidden_layers", path),
        vocab_size=_positive(config, "vocab_size", path),
        context_length=context_length or _positive(config, "max_position_embeddings", path),
        rope=_rope(config),
    )


def _positive(config: dict[str, Any], key: str, path: Path) -> int:
    """Return an integer >= 1 of the config."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{path}: {key} is {value!r}, it must be a whole number >= 1")
    return value


def _rope(config: dict[str, Any]) -> str:
    """Return all rope settings as canonical JSON."""
    settings = {key: value for key, value in config.items() if key.startswith("rope")}
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))
