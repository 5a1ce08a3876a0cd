"""When a pipeline's latency is known, and what a file says of another split."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from scheduler.latency_file import LatencyFile, SavedStage
from scheduler.latency_fit import LatencyPoint
from scheduler.latency_model import StageLatency, Work
from scheduler.stage_fit import (
    StageFit,
    check_covers,
    file_fit,
    latency_of,
    pipeline_latency,
    profile_fit,
)

_FIRST = StageLatency(
    floor_ms=2.0, fixed_ms=1.0, ms_per_token=0.5, ms_per_pair=1e-5, ms_per_row=3.0, edge_ms=0.25
)
_SECOND = StageLatency(
    floor_ms=4.0, fixed_ms=2.0, ms_per_token=0.6, ms_per_pair=2e-5, ms_per_row=5.0, edge_ms=1.0
)


def _layers(first: int, last: int) -> LayerRange:
    return LayerRange(first=first, last=last)


def _file() -> LatencyFile:
    """Write a file of stages of two and four layers."""
    stages = (SavedStage.of(_layers(0, 2), _FIRST), SavedStage.of(_layers(2, 6), _SECOND))
    return LatencyFile(model="m", device="cpu", stages=stages)


def _points(latency: StageLatency) -> list[LatencyPoint]:
    works = [
        *(Work.of_chunk(start, start + size) for start in (0, 64, 512) for size in (16, 64, 256)),
        *(Work.of_rows([length] * rows) for rows in (1, 8) for length in (64, 512)),
    ]
    return [LatencyPoint(work=work, ms=latency.microbatch_ms(work)) for work in works]


def test_a_profile_is_fitted() -> None:
    """Points of a stage that follows the model give that stage."""
    truth = dataclasses.replace(_FIRST, floor_ms=0.0, edge_ms=0.0)
    fit = profile_fit(_layers(0, 2), _points(truth))
    assert (None, "profile") == (fit.refused, fit.source)
    assert fit.latency is not None
    assert pytest.approx(truth.chunk_ms(100, 300), rel=0.01) == fit.latency.chunk_ms(100, 300)
    assert fit.median_error is not None
    assert fit.median_error < 0.01


def test_no_profile_is_no_latency() -> None:
    """A worker with its profile off is told from one whose fit is bad."""
    fit = profile_fit(_layers(0, 2), ())
    assert ("its worker measured nothing", None) == (fit.refused, fit.source)


def test_too_few_points_have_no_errors() -> None:
    """Infinity must not reach metrics and messages."""
    fit = profile_fit(_layers(0, 2), _points(_FIRST)[:3])
    assert fit.refused is not None
    assert (None, None, None) == (fit.latency, fit.median_error, fit.p90_error)


def test_one_refused_stage_is_a_pipeline_unknown() -> None:
    """Half a model would make the slow stage look fast."""
    good = file_fit(_file(), _layers(0, 2), ())
    refused = dataclasses.replace(good, refused="median error")
    latency = pipeline_latency([good, good])
    assert latency is not None
    assert (_FIRST, _FIRST) == latency.stages
    assert pipeline_latency([good, refused]) is None
    assert pipeline_latency([good, profile_fit(_layers(2, 6), ())]) is None
    assert pipeline_latency([]) is None


def test_the_files_own_split_is_taken_as_it_is() -> None:
    """What was saved is what is used."""
    assert _FIRST == latency_of(_file(), _layers(0, 2))
    assert _SECOND == latency_of(_file(), _layers(2, 6))


def test_another_split_is_scaled_by_layers() -> None:
    """One layer of the first and two of the second stage: half of each."""
    latency = latency_of(_file(), _layers(1, 4))
    expected = StageLatency(
        floor_ms=3.0, fixed_ms=1.5, ms_per_token=0.55, ms_per_pair=1.5e-5, ms_per_row=4.0, edge_ms=1
    )
    for work in (Work.of_chunk(100, 200), Work.of_rows([50]), Work()):
        assert pytest.approx(expected.microbatch_ms(work)) == latency.microbatch_ms(work)


def test_a_file_is_compared_with_what_is_measured() -> None:
    """It is used all the same, and its user sees how far it is off."""
    slower = dataclasses.replace(_FIRST, fixed_ms=2.0, ms_per_token=1.0, ms_per_pair=2e-5)
    fit = file_fit(_file(), _layers(0, 2), _points(slower))
    assert (None, "file") == (fit.refused, fit.source)
    assert fit.median_error is not None
    assert 0.3 < fit.median_error < 0.5
    without = file_fit(_file(), _layers(0, 2), ())
    assert isinstance(without, StageFit)
    assert without.median_error is None


def test_a_file_of_another_model_is_refused() -> None:
    """Layers that it does not have cannot be made up."""
    check_covers(_file(), 6, name="f.json")
    with pytest.raises(ConfigError, match=r"f.json has .* layers 0-5, the model has 0-29"):
        check_covers(_file(), 30, name="f.json")
