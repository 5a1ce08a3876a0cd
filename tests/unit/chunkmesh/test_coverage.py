"""Layer masks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkmesh.coverage import MAX_MODEL_LAYERS, Coverage, layer_mask, layer_ranges


def test_ranges_of_a_mask_with_a_gap() -> None:
    """Admins read which layers a page lacks."""
    assert layer_ranges(0b100011) == ((0, 2), (5, 6))


@given(st.sets(st.integers(0, 70)))
def test_ranges_hold_exactly_the_layers(layers: set[int]) -> None:
    """A range too many would make a page look complete."""
    mask = sum(1 << layer for layer in layers)
    ranges = layer_ranges(mask)
    assert layers == {layer for first, last in ranges for layer in range(first, last)}
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    assert mask == sum(layer_mask(first, last) for first, last in ranges)


@pytest.mark.parametrize(
    ("layers", "model_layers", "sound"),
    [
        (0b11, 2, True),
        (0, 2, False),
        (0b100, 2, False),
        (1, 0, False),
        (1, MAX_MODEL_LAYERS + 1, False),
    ],
)
def test_soundness(layers: int, model_layers: int, *, sound: bool) -> None:
    """Coverage comes over the wire and from Redis; nonsense must not reach the index."""
    assert sound == Coverage(layers=layers, model_layers=model_layers, layer_bytes=1).is_sound
