"""What a mesh adds to computing, from timelines."""

from __future__ import annotations

import pytest

from chunkmesh.v1 import generation_pb2 as pb
from tests.bench.stage_gaps import stage_gaps
from tests.told_timelines import told


def test_what_is_not_computed_is_overhead() -> None:
    """Ten microbatches a millisecond long, each 1.5 ms behind the one before; one comes late."""
    timeline = list(told("a", [(index, 0, 8) for index in range(10)]).microbatches)
    for index, each in enumerate(timeline):
        each.stages[0].start_us = 1500 * index + (700 if index == 9 else 0)
    first, second = stage_gaps(timeline)
    assert (first.num_microbatches, first.compute_ms) == (10, 10.0)
    assert first.wall_ms == pytest.approx(9 * 1.5 + 0.7 + 1)
    assert first.overhead_ms == pytest.approx((9 * 0.5 + 0.7) / 10)
    assert (first.median_gap_ms, first.p90_gap_ms) == (0.5, 1.2)
    assert second.overhead_ms == 0


def test_no_timeline_has_no_stages() -> None:
    """A request without a timeline must not end a bench."""
    assert stage_gaps(list[pb.MicrobatchTiming]()) == []
