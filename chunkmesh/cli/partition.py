"""Which layers each stage gets: an even split, or the ranges that the user names.

A split by what layers take is auto_partition.py.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from chunkmesh.coverage import MAX_MODEL_LAYERS
from chunkmesh.errors import ConfigError, reason_of
from chunkmesh.json_text import parse_json
from chunkmesh.known_architectures import ARCHITECTURE_NAMES
from chunkmesh.layers import LayerRange, check_tiling, partition


class Partition(StrEnum):
    """Ways to split layers over stages."""

    EVEN = "even"
    AUTO = "auto"


def parse_ranges(text: str) -> tuple[LayerRange, ...]:
    """Read the ranges of the stages in order, such as 0-14,15-29 (inclusive) or 0:15,15:30.

    Raises:
        ConfigError: a part is no range, or they are not in order; names it.
    """
    ranges = tuple(LayerRange.parse(part) for part in text.split(","))
    for before, after in pairwise(ranges):
        if after.first < before.last:
            raise ConfigError(f"--layers: {after} must come after {before}, stages run in order")
    return ranges


def stage_ranges(
    num_layers: int, *, num_stages: int, named: tuple[LayerRange, ...] | None
) -> tuple[LayerRange, ...]:
    """Return the layers of each stage: those named, or an even split over num_stages.

    Raises:
        ConfigError: the ranges do not tile the model, or there are more stages than layers.
    """
    if named is None:
        return partition(num_layers, num_stages)
    tiling = check_tiling(named, num_layers)
    if not tiling.complete:
        raise ConfigError(f"--layers do not tile a model of {num_layers} layers: {tiling}")
    return named


def parse_replicas(text: str) -> tuple[int, ...]:
    """Read how many workers each stage has, such as 2 or 1,2.

    Raises:
        ConfigError: a part is no number; names it.
    """
    for part in text.split(","):
        if not part.isdecimal():
            raise ConfigError(f"--replicas {text}: {part!r} is no number of workers")
    return tuple(map(int, text.split(",")))


def worker_ranges(
    stages: tuple[LayerRange, ...], replicas: tuple[int, ...]
) -> tuple[LayerRange, ...]:
    """Return the layers of each worker: one for each stage in order, then all further ones.

    Raises:
        ConfigError: there are neither one number nor as many as stages.
    """
    if len(replicas) not in {1, len(stages)}:
        raise ConfigError(
            f"--replicas names {len(replicas)} stages, the mesh has {len(stages)}: give one number"
            " for all or one for each"
        )
    counts = replicas * len(stages) if len(replicas) == 1 else replicas
    further = [
        layers for layers, count in zip(stages, counts, strict=True) for _ in range(count - 1)
    ]
    return (*stages, *further)


def inclusive(layers: LayerRange) -> str:
    """Write a range as the --layers flag of a worker takes it."""
    return f"{layers.first}-{layers.last - 1}"


def read_num_layers(model_path: Path) -> int:
    """Read the number of decoder layers from a model folder's config.json.

    Raises:
        ConfigError: the folder is no model, or none that is served; names what is wrong.
    """
    path = model_path / "config.json"
    try:
        config = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"--model-path {model_path}: no config.json there; give a Hugging Face model folder,"
            " or demo"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model-path: cannot read {path}: {reason_of(error)}") from error
    names = config.get("architectures") if isinstance(config, dict) else None
    if isinstance(names, list) and names and not any(each in ARCHITECTURE_NAMES for each in names):
        raise ConfigError(
            f"--model-path: {path}: architecture {names[0]} is not served; those that are:"
            f" {', '.join(ARCHITECTURE_NAMES)}"
        )
    num_layers = config.get("num_hidden_layers") if isinstance(config, dict) else None
    if type(num_layers) is not int or not 1 <= num_layers <= MAX_MODEL_LAYERS:
        raise ConfigError(
            f"--model-path: {path} has no num_hidden_layers from 1 to {MAX_MODEL_LAYERS}"
        )
    return num_layers
