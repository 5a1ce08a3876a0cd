"""The exact partition: against all there are, and as the even split where nothing is uneven."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange, partition
from scheduler.planning.balanced_partition import LayerCosts, balanced_partition


def _slowest(costs: LayerCosts, ranges: tuple[LayerRange, ...]) -> float:
    """Return the cost of the slowest stage."""
    sums = [sum(costs.layers[r.first : r.last]) for r in ranges]
    sums[0] += costs.first
    sums[-1] += costs.last
    return max(sums)


def _all(num_layers: int, num_stages: int) -> list[tuple[LayerRange, ...]]:
    """Return every contiguous partition."""
    return [
        tuple(LayerRange(first=a, last=b) for a, b in itertools.pairwise((0, *cuts, num_layers)))
        for cuts in itertools.combinations(range(1, num_layers), num_stages - 1)
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=9),
    st.integers(1, 9),
    st.floats(0, 20),
    st.floats(0, 20),
)
def test_no_partition_is_faster(
    layers: list[float], num_stages: int, first: float, last: float
) -> None:
    """Whatever the layers cost, no other split has a faster slowest stage."""
    num_stages = min(num_stages, len(layers))
    costs = LayerCosts(layers=layers, first=first, last=last)
    chosen = balanced_partition(costs, num_stages)
    assert chosen in _all(len(layers), num_stages)
    least = min(_slowest(costs, ranges) for ranges in _all(len(layers), num_stages))
    assert _slowest(costs, chosen) <= least + 1e-6


@pytest.mark.parametrize(
    ("num_layers", "sizes"),
    [(61, [15, 15, 15, 16]), (94, [11, 11, 12, 12, 12, 12, 12, 12]), (30, [15, 15])],
)
def test_equal_layers_are_split_evenly(num_layers: int, sizes: list[int]) -> None:
    """The remainder goes to the last stages, as in the even split."""
    chosen = balanced_partition(LayerCosts(layers=[0.7] * num_layers), len(sizes))
    assert sizes == [layers.num_layers for layers in chosen]
    assert partition(num_layers, len(sizes)) == chosen


def test_a_head_takes_layers_from_its_stage() -> None:
    """A head of eight layers' cost leaves eleven of thirty layers to the last of two stages."""
    chosen = balanced_partition(LayerCosts(layers=[1.0] * 30, last=8.0), 2)
    assert [layers.num_layers for layers in chosen] == [19, 11]


def test_more_stages_than_layers_are_refused() -> None:
    """Each stage needs a layer."""
    with pytest.raises(ConfigError, match="3 layers cannot be split over 4 stages"):
        balanced_partition(LayerCosts(layers=[1.0] * 3), 4)
