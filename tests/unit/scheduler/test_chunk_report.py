"""What is logged of how prompts are cut."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from chunkmesh.layers import LayerRange
from scheduler.chunk_report import ChunkReport
from scheduler.stage_fit import StageFit, profile_fit

_LAYERS = LayerRange(first=0, last=4)
_UNMEASURED = profile_fit(_LAYERS, ())
_REFUSED = StageFit(
    layers=_LAYERS,
    latency=None,
    median_error=0.5,
    p90_error=0.9,
    refused="median error at unseen points is 50.0%, above the limit of 10%",
    source="profile",
)
_REASON = "optimal needs the latency of all stages"


def _levels(report: ChunkReport, *routes: tuple[StageFit, ...]) -> list[str]:
    """Return the levels of what is told of routes that are all cut in fixed chunks."""
    with capture_logs() as logs:
        for fits in routes:
            report.tell("fixed", _REASON, fits)
    assert {"chunk strategy replaced"} == {line["event"] for line in logs}
    return [line["log_level"] for line in logs]


def test_choice_not_to_measure_is_told_once() -> None:
    """Every restart of a worker forms a route; nobody must act on any."""
    report = ChunkReport("optimal", is_default=True)
    assert ["info"] == _levels(report, *[(_UNMEASURED, _UNMEASURED)] * 3)


@pytest.mark.parametrize(
    ("is_default", "fits"),
    [(False, (_UNMEASURED, _UNMEASURED)), (True, (_UNMEASURED, _REFUSED))],
    ids=["strategy named", "bad measurement"],
)
def test_all_else_is_a_warning_each_time(fits: tuple[StageFit, ...], *, is_default: bool) -> None:
    """Somebody does not get what was asked for, on this route too."""
    report = ChunkReport("optimal", is_default=is_default)
    assert ["warning", "warning"] == _levels(report, fits, fits)


def test_latency_that_is_lost_again_is_told_again() -> None:
    """A route that planned well lies between."""
    report = ChunkReport("optimal", is_default=True)
    assert ["info"] == _levels(report, (_UNMEASURED,))
    report.tell("optimal", "", ())
    assert ["info"] == _levels(report, (_UNMEASURED,))
