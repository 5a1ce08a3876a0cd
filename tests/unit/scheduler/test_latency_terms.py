"""What a scheduler tells of its latency is what a client plans with."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.v1 import generation_pb2 as pb
from scheduler.latency_model import StageLatency
from scheduler.latency_terms import told_latency
from scheduler.size_ratios import SizeRatios

PLAIN = StageLatency(fixed_ms=1.0, ms_per_token=0.5, ms_per_pair=1e-6, edge_ms=0.25)


@pytest.mark.parametrize(
    "latency",
    [
        PLAIN,
        dataclasses.replace(PLAIN, floor_ms=6.0, rows_fixed_ms=0.0),
        dataclasses.replace(
            PLAIN, size_ratios=SizeRatios(tokens=(64, 128), ratios=(1.05, 0.95)), rows_fixed_ms=2.0
        ),
    ],
    ids=["terms", "no fixed time of rows", "sizes"],
)
def test_nothing_is_lost_on_the_way(latency: StageLatency) -> None:
    """A fixed time of zero differs from none."""
    assert latency == told_latency(pb.LatencyTerms(**dataclasses.asdict(latency)))
