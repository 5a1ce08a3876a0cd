"""Which layers of a page are stored, whoever wrote them. Pure.

Layers are a bit mask (bit i = layer i), so that the union of writers with different splits is one
operation.
"""

from __future__ import annotations

import dataclasses

MAX_MODEL_LAYERS = 4096
MAX_LAYER_BYTES = 1 << 28
"""Far more than any page has in a layer; sums over millions of pages stay below 2**63."""


def layer_mask(first: int, last: int) -> int:
    """Return the mask of layers [first, last)."""
    return (1 << last) - (1 << first)


def layer_ranges(layers: int) -> tuple[tuple[int, int], ...]:
    """Return a mask as half-open ranges in order."""
    ranges = []
    start = 0
    while layers >> start:
        rest = layers >> start
        first = start + (rest & -rest).bit_length() - 1
        rest = layers >> first
        last = first + (~rest & (rest + 1)).bit_length() - 1
        ranges.append((first, last))
        start = last
    return tuple(ranges)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What one writer stored of a page, or what was found of it."""

    layers: int
    """Mask; 0 < layers < 2**model_layers."""
    model_layers: int
    """Layers of the whole model, 1..MAX_MODEL_LAYERS."""
    layer_bytes: int
    """Bytes of the page in one layer, 0..MAX_LAYER_BYTES."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the page in those layers."""
        return self.layers.bit_count() * self.layer_bytes

    @property
    def is_sound(self) -> bool:
        """Whether the fields keep their bounds; to be asked of anything that came from outside."""
        return (
            0 < self.model_layers <= MAX_MODEL_LAYERS
            and 0 < self.layers < 1 << self.model_layers
            and 0 <= self.layer_bytes <= MAX_LAYER_BYTES
        )
