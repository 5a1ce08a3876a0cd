"""How layers would be split better."""

from __future__ import annotations

import itertools

from chunkmesh.layers import LayerRange
from scheduler.tuning.advice import advise


def ranges(*borders: int) -> list[LayerRange]:
    """Return stages between borders."""
    return [LayerRange(first=a, last=b) for a, b in itertools.pairwise(borders)]


def test_a_stage_that_takes_longer_gives_layers_away() -> None:
    """Two layers that take twice as long on a slow machine; the rest is as even as can be."""
    advice = advise(ranges(0, 10, 20), [(1000.0, 2000.0)], (0.0, 0.0))
    assert advice is not None
    assert ranges(0, 12, 20) == list(advice.ranges)
    assert 2000.0 == advice.slowest_ms
    assert 1600.0 == advice.expected_ms


def test_an_even_split_stays() -> None:
    """A restart for nothing is worse than none."""
    assert advise(ranges(0, 10, 20), [(1000.0, 1010.0)], (0.0, 0.0)) is None


def test_a_head_is_no_layer() -> None:
    """What the last stage does beside its layers stays there when they move."""
    advice = advise(ranges(0, 10, 20), [(1000.0, 1400.0)], (0.0, 400.0))
    assert advice is not None
    assert ranges(0, 12, 20) == list(advice.ranges)
    assert 1200.0 == advice.expected_ms


def test_the_median_of_the_runs_counts() -> None:
    """One run that was disturbed must not move layers."""
    runs = [(1000.0, 1000.0), (1000.0, 1000.0), (5000.0, 1000.0)]
    assert advise(ranges(0, 10, 20), runs, (0.0, 0.0)) is None
