"""Pipeline: window, credit of stage 0, acknowledgements."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.errors import InvariantViolated
from scheduler.events import Acked
from scheduler.part import Part
from scheduler.pipeline import Pipeline
from scheduler.request import Request
from tests.specs import GREEDY, make_spec, zero_logprobs


def _parts() -> tuple[Part, ...]:
    """Return a microbatch of one middle chunk."""
    request = Request(spec=make_spec("a", 8))
    return (Part(request=request, start=0, end=4, is_chunk=True, num_samples=0),)


def _acked(stage: int, seq_no: int) -> Acked:
    """Return the acknowledgement of a microbatch that samples nothing."""
    return Acked(epoch=1, stage=stage, seq_no=seq_no)


def test_stage_0_has_two() -> None:
    """One computes and one waits: a third would only lengthen the queue of whoever comes next."""
    pipeline = Pipeline(num_stages=4, window=5)
    assert [pipeline.send(_parts()), pipeline.send(_parts())] == [0, 1]
    assert not pipeline.has_room()
    pipeline.ack(_acked(0, 0))
    assert pipeline.has_room()


def test_window_counts_to_the_last_stage() -> None:
    """What is in the middle of the pipeline counts until the last stage is done with it."""
    pipeline = Pipeline(num_stages=3, window=2)
    for seq_no in range(2):
        pipeline.send(_parts())
        pipeline.ack(_acked(0, seq_no))
        pipeline.ack(_acked(1, seq_no))
    assert not pipeline.has_room()
    pipeline.ack(_acked(2, 0))
    assert pipeline.has_room()
    with pytest.raises(InvariantViolated, match="no room"):
        _ = [pipeline.send(_parts()) for _ in range(2)]


def test_complete_when_all_stages_acked_in_any_order() -> None:
    """Pages must outlive the slowest acknowledgement, and are freed in order."""
    pipeline = Pipeline(num_stages=2, window=3)
    first, second = _parts(), _parts()
    pipeline.send(first)
    pipeline.send(second)
    assert pipeline.ack(_acked(1, 0)) is first
    assert pipeline.ack(_acked(1, 1)) is second
    assert pipeline.take_complete() == []
    pipeline.ack(_acked(0, 0))
    assert pipeline.take_complete() == [first]
    assert pipeline.num_in_flight == 1
    pipeline.ack(_acked(0, 1))
    assert pipeline.take_complete() == [second]
    assert pipeline.ack(_acked(0, 1)) is None


def test_log_probabilities_are_counted() -> None:
    """What only a bug can say is refused before anything has changed."""
    spec = make_spec(
        "a", 8, sampling=dataclasses.replace(GREEDY, top_logprobs=1), prompt_top_logprobs=0
    )
    part = Part(
        request=Request(spec=spec), start=0, end=8, is_chunk=True, num_samples=1, num_targets=7
    )
    pipeline = Pipeline(num_stages=1, window=1)
    pipeline.send((part,))
    acked = dataclasses.replace(_acked(0, 0), sampled_ids=(5,))
    with pytest.raises(InvariantViolated, match=r"of \[\] sampled ids in 0, expected \[1\]"):
        pipeline.ack(acked)
    acked = dataclasses.replace(acked, sampled_logprobs=(zero_logprobs(1),))
    wrong = dataclasses.replace(acked, prompt_logprobs=(zero_logprobs(6),))
    with pytest.raises(InvariantViolated, match=r"of \[6\] prompt tokens in 0, expected \[7\]"):
        pipeline.ack(wrong)
    right = dataclasses.replace(acked, prompt_logprobs=(zero_logprobs(7),))
    assert pipeline.ack(right) == (part,)
