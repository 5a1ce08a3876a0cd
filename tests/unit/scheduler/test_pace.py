"""What a route's stages take: predicted, told, and modelled anew."""

from __future__ import annotations

import pytest

from scheduler.events import Acked, RouteFormed
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.pace import Pace
from tests.model_times import CONFIG

_STAGES = (
    StageLatency(fixed_ms=1.0, ms_per_token=0.01),
    StageLatency(fixed_ms=2.0, ms_per_token=0.02),
)


def _pace(latency: PipelineLatency | None) -> Pace:
    """Return the pace of two stages."""
    return Pace(RouteFormed(epoch=1, num_stages=2, num_pages=512, latency=latency), CONFIG)


def _acked(stage: int, seq_no: int, compute_ms: float) -> Acked:
    """Return an acknowledgement."""
    return Acked(epoch=1, stage=stage, seq_no=seq_no, compute_ms=compute_ms)


def _work(pace: Pace, factors: tuple[float, float], num_microbatches: int) -> list[int]:
    """Let chunks of many sizes take a factor of what is expected; return when fits changed."""
    changed = []
    for seq_no in range(num_microbatches):
        start, tokens = seq_no % 7 * 1024, 256 * (1 + seq_no % 5)
        work = Work.of_chunk(start, start + tokens)
        pace.sent(work, float(seq_no))
        for stage, factor in enumerate(factors):
            ms = factor * _STAGES[stage].microbatch_ms(work)
            if pace.acked(_acked(stage, seq_no, ms), seq_no + 0.5):
                changed.append(seq_no)
    return changed


def test_each_stage_is_predicted() -> None:
    """A picture of predicted beside measured times is by stage."""
    assert _pace(PipelineLatency(_STAGES)).sent(Work.of_chunk(0, 100), 0.0) == (2.0, 4.0)
    assert _pace(None).sent(Work.of_chunk(0, 100), 0.0) == ()


def test_only_the_stage_that_changed_is_replaced() -> None:
    """And plans change with the last stage's acknowledgement, once for all stages."""
    pace = _pace(PipelineLatency(_STAGES))
    changed = _work(pace, (1.0, 1.25), 40)
    assert len(changed) >= 1
    assert pace.num_refits[0] == 0
    assert pace.num_refits[1] == len(changed)
    assert pace.latency is not None
    work = Work.of_chunk(2048, 3072)
    expected_ms = 1.25 * _STAGES[1].microbatch_ms(work)
    assert pytest.approx(expected_ms, rel=0.1) == pace.latency.stages[1].microbatch_ms(work)
    assert pace.latency.stages[0] == _STAGES[0]


def test_what_is_as_expected_changes_nothing() -> None:
    """No plan is made anew for the same latency."""
    latency = PipelineLatency(_STAGES)
    pace = _pace(latency)
    assert _work(pace, (1.0, 1.0), 60) == []
    assert pace.latency is latency


def test_silence_is_no_time() -> None:
    """A stage that does not say how long it computed is not taken to be infinitely fast."""
    pace = _pace(PipelineLatency(_STAGES))
    assert _work(pace, (0.0, 0.0), 60) == []
    assert pace.num_refits == [0, 0]


def test_stages_may_be_heard_in_any_order() -> None:
    """Each time belongs to its own microbatch: the last stage may be heard before the first."""
    pace = _pace(PipelineLatency(_STAGES))
    works = [Work.of_chunk(0, tokens) for tokens in (100, 8000) * 10]
    for seq_no, work in enumerate(works):
        pace.sent(work, float(seq_no))
        pace.acked(_acked(1, seq_no, _STAGES[1].microbatch_ms(work)), seq_no + 0.1)
    for seq_no, work in enumerate(works):
        pace.acked(_acked(0, seq_no, _STAGES[0].microbatch_ms(work)), 20.0 + seq_no)
    assert pace.num_refits == [0, 0]


def test_without_a_model_the_bubble_is_known_all_the_same() -> None:
    """It needs only what stages tell."""
    pace = _pace(None)
    _work(pace, (1.0, 1.0), 5)
    first, second = pace.use.bubble_ratios
    assert 0 < second < first < 1
