"""Ranges of decoder layers: how they are written, split a model, and cover it. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Self

from chunkmesh.errors import ConfigError

_INCLUSIVE = re.compile(r"(\d+)-(\d+)", re.ASCII)
_HALF_OPEN = re.compile(r"(\d+):(\d+)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LayerRange:
    """A contiguous, half-open range of decoder layers [first, last)."""

    first: int
    """First layer, from 0."""
    last: int
    """One past the last layer, > first."""

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last:
            raise ConfigError(f"layers [{self.first}, {self.last}) are no range: 0 <= first < last")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read 15-29, which includes layer 29, or 15:30, which does not include layer 30.

        Raises:
            ConfigError: the text is neither, or the range is empty; names it.
        """
        compact = text.strip()
        if match := _INCLUSIVE.fullmatch(compact):
            first, last = int(match[1]), int(match[2]) + 1
        elif match := _HALF_OPEN.fullmatch(compact):
            first, last = int(match[1]), int(match[2])
        else:
            raise ConfigError(f"{text!r} is no layer range: write 15-29 (inclusive) or 15:30")
        if first >= last:
            raise ConfigError(f"{text!r} holds no layer: the first comes after the last")
        return cls(first=first, last=last)

    @property
    def num_layers(self) -> int:
        """Layers in the range, >= 1."""
        return self.last - self.first

    def __str__(self) -> str:
        return f"{self.first}-{self.last - 1}" if self.num_layers > 1 else f"{self.first}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a set of ranges covers a model; both tuples ascend and their ranges do not touch."""

    missing: tuple[LayerRange, ...]
    """Layers that no range holds."""
    doubled: tuple[LayerRange, ...]
    """Layers that more than one range holds."""

    @property
    def complete(self) -> bool:
        """Every layer is held exactly once."""
        return not self.missing and not self.doubled

    def __str__(self) -> str:
        parts = []
        if self.missing:
            parts.append(f"layers {_join(self.missing)} missing")
        if self.doubled:
            parts.append(f"layers {_join(self.doubled)} held more than once")
        return "; ".join(parts) or "every layer held once"


def _join(ranges: Iterable[LayerRange]) -> str:
    return ", ".join(map(str, ranges))


def partition(num_layers: int, num_stages: int) -> tuple[LayerRange, ...]:
    """Split a model evenly; the remainder goes to later stages, one layer each.

    Raises:
        ConfigError: a stage would hold no layer, or there is no stage.
    """
    if not 1 <= num_stages <= num_layers:
        raise ConfigError(
            f"{num_layers} layers cannot be split over {num_stages} stages: each needs one layer"
        )
    share, remainder = divmod(num_layers, num_stages)
    ranges = []
    first = 0
    for stage in range(num_stages):
        last = first + share + (stage >= num_stages - remainder)
        ranges.append(LayerRange(first=first, last=last))
        first = last
    return tuple(ranges)


def check_tiling(ranges: Iterable[LayerRange], num_layers: int) -> Tiling:
    """Report which layers of a model no range holds, and which are held more than once.

    Replicas hold the same range: give it once.

    Raises:
        ConfigError: a range reaches past the model; names it and the number of layers.
    """
    holders = [0] * num_layers
    for held in ranges:
        if held.last > num_layers:
            raise ConfigError(f"layers {held} reach past a model of {num_layers} layers")
        for layer in range(held.first, held.last):
            holders[layer] += 1
    return Tiling(
        missing=_runs([count == 0 for count in holders]),
        doubled=_runs([count > 1 for count in holders]),
    )


def _runs(marks: Sequence[bool]) -> tuple[LayerRange, ...]:
    """Return the maximal runs of true marks."""
    runs = []
    start: int | None = None
    for layer, mark in enumerate([*marks, False]):
        if mark and start is None:
            start = layer
        elif not mark and start is not None:
            runs.append(LayerRange(first=start, last=layer))
            start = None
    return tuple(runs)
