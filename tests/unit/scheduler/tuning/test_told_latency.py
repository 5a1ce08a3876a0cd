"""Latencies that a mesh tells: read as what is planned with, and saved as a file of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chunkmesh.cli.stage_fits import write_latency_model
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.latency_file import parse_latency_file
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.size_ratios import SizeRatios
from scheduler.tuning.command import latency_of

_PLAIN = StageLatency(floor_ms=1.0, ms_per_token=0.01, ms_per_pair=1e-8, edge_ms=0.5)
_SIZED = dataclasses.replace(_PLAIN, size_ratios=SizeRatios(tokens=(64, 512), ratios=(1.1, 0.95)))


def _info(stages: tuple[StageLatency, ...]) -> pb.GetServerInfoResponse:
    """Tell one layer for each stage, as the scheduler does."""
    return pb.GetServerInfoResponse(
        fits=[
            pb.StageFit(
                layers=common_pb2.LayerRange(first=index, last=index + 1),
                terms=pb.LatencyTerms(**dataclasses.asdict(stage)),
            )
            for index, stage in enumerate(stages)
        ]
    )


@pytest.mark.parametrize("stages", [(_PLAIN,), (_SIZED, _PLAIN), (_SIZED, _SIZED)])
def test_it_is_what_is_planned_with(stages: tuple[StageLatency, ...]) -> None:
    """Tuning tries what the scheduler would cut, so sizes must come along."""
    assert PipelineLatency(stages) == latency_of(_info(stages))


@pytest.mark.parametrize("stages", [(_PLAIN,), (_SIZED, _PLAIN)])
def test_a_saved_file_is_read_back(stages: tuple[StageLatency, ...], tmp_path: Path) -> None:
    """What --save-latency-model writes, --latency-model reads."""
    path = tmp_path / "fit.json"
    write_latency_model(_info(stages), pb.GetModelInfoResponse(fingerprint=b"m"), path)
    file = parse_latency_file(path.read_text(), name="fit.json")
    assert stages == tuple(stage.latency for stage in file.stages)
