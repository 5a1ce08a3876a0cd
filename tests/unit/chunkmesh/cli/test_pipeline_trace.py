"""PipelineTrace: several requests on one clock, each microbatch once a stage."""

from __future__ import annotations

import itertools

import pytest

from chunkmesh.cli.pipeline_trace import PipelineTrace
from chunkmesh.v1 import generation_pb2 as pb
from tests.told_timelines import MS, told

PREFILL = [(0, 0, 64), (1, 64, 64)]


def test_requests_share_the_clock_of_the_first() -> None:
    """Whoever came later starts later, however its own times are told."""
    later = told("b", [(4, 0, 64)], arrived_us=2 * MS, prompt_tokens=64)
    trace = PipelineTrace.of([later, told("a", PREFILL)])
    assert [("a", 0), ("b", 2 * MS)] == [
        (each.told.request_id, each.arrived_us) for each in trace.requests
    ]
    starts = [run.start_us for run in trace.runs if run.stage == 0]
    assert [0, MS, 4 * MS] == starts
    assert [3 * MS, 5 * MS] == [each.first_token_us for each in trace.requests]


def test_a_microbatch_of_two_requests_is_there_once() -> None:
    """Twice on the same stage at the same time would look like two computes."""
    trace = PipelineTrace.of(
        [told("a", [*PREFILL, (2, 128, 1)]), told("b", [(2, 64, 1)], prompt_tokens=64)]
    )
    assert [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] == [
        (run.stage, run.microbatch.seq_no) for run in trace.runs
    ]
    shared = trace.runs[2].microbatch
    assert [(0, 128, None), (1, 64, None)] == [
        (part.request, part.start, part.chunk) for part in shared.parts
    ]


def test_chunks_are_numbered_and_decode_steps_are_not() -> None:
    """Only the position tells a last chunk of one token from a decode step."""
    trace = PipelineTrace.of([told("a", [(0, 0, 64), (1, 64, 1), (2, 65, 1)], prompt_tokens=65)])
    assert [0, 1, None] == [run.microbatch.parts[0].chunk for run in trace.runs if run.stage == 0]


def test_epochs_do_not_mix() -> None:
    """Numbers begin anew when a route is formed again."""
    second = told("b", [(0, 0, 64)], arrived_us=10 * MS)
    second.microbatches[0].epoch = 2
    trace = PipelineTrace.of([told("a", [(0, 0, 64)]), second])
    assert 4 == len(trace.runs)


def test_nothing_overlaps_on_a_stage() -> None:
    """Stages tell rounded durations; viewers nest what overlaps."""
    request = told("a", [(n, 64 * n, 64) for n in range(4)], prompt_tokens=256)
    for microbatch in request.microbatches:
        for stage in microbatch.stages:
            stage.compute_us += 3
            stage.wait_us += 5 * MS
            stage.send_us += 5 * MS
    runs = PipelineTrace.of([request]).runs
    for before, after in itertools.pairwise(run for run in runs if run.stage == 0):
        assert before.end_us <= after.ready_us <= after.start_us
        assert before.sent_us <= after.end_us
        assert before.end_us <= before.sent_us


def test_a_stage_that_was_not_heard_yet_is_missing() -> None:
    """A request that runs has microbatches half way through the pipeline."""
    request = told("a", PREFILL, finish_reason="")
    del request.microbatches[1].stages[1]
    trace = PipelineTrace.of([request])
    assert [(0, 0), (0, 1), (1, 0)] == [(run.stage, run.microbatch.seq_no) for run in trace.runs]
    assert trace.requests[0].ended_us is None
    assert "no token yet" in trace.requests[0].headline
    assert trace.requests[0].headline.endswith("running")


def test_the_bubble_is_what_no_stage_computes() -> None:
    """Two chunks of 1 ms on two stages take 3 ms: two of six stage-milliseconds are empty."""
    trace = PipelineTrace.of([told("a", [*PREFILL, (7, 128, 1)])])
    assert (0, 3 * MS) == trace.prefill_us(0)
    assert pytest.approx(1 / 3) == trace.bubble_ratio(0, 3 * MS)


def test_work_for_another_request_is_no_bubble() -> None:
    """A pipeline that is full of others' chunks does not stand still."""
    other = told("b", [(2, 0, 64)], prompt_tokens=64)
    trace = PipelineTrace.of([told("a", PREFILL), other])
    assert pytest.approx(1 / 6) == trace.bubble_ratio(0, 3 * MS)


def test_a_request_that_never_ran_has_no_prefill() -> None:
    """It waited until its client left."""
    trace = PipelineTrace.of([told("a", [], finish_reason="gone")])
    assert trace.prefill_us(0) is None
    assert (0, 0.0) == (trace.num_stages, trace.bubble_ratio(0, MS))
    assert PipelineTrace.of([]).requests == ()
    assert isinstance(trace.requests[0].told, pb.GetTimelinesResponse)
