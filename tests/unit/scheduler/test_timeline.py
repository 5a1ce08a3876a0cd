"""Timeline: whose clock, which parts, how much."""

from __future__ import annotations

import numpy as np

from scheduler.actions import PlannedEntry, SendMicrobatch
from scheduler.timeline import AckTimes, MicrobatchTiming, StageTiming, Timeline


def _microbatch(
    seq_no: int,
    *entries: tuple[str, int, int],
    epoch: int = 1,
    predicted_ms: tuple[float, ...] = (),
) -> SendMicrobatch:
    """Return a microbatch of (request_id, start, num_tokens)."""
    return SendMicrobatch(
        epoch=epoch,
        seq_no=seq_no,
        entries=tuple(
            PlannedEntry(request_id=name, row=row, start=start, num_tokens=num, new_page_ids=())
            for row, (name, start, num) in enumerate(entries)
        ),
        token_ids=np.zeros(sum(num for _, _, num in entries), dtype=np.uint32),
        samples=(),
        predicted_ms=predicted_ms,
    )


def _timeline(*, num_stages: int, max_microbatches: int) -> Timeline:
    """Return one with a route of epoch 1."""
    timeline = Timeline(max_microbatches=max_microbatches)
    timeline.begin(1, num_stages)
    return timeline


def _times(started_us: int, acked_us: int) -> AckTimes:
    """Return what a stage tells."""
    compute_us = acked_us - started_us
    return AckTimes(
        started_us=started_us, acked_us=acked_us, wait_us=5, compute_us=compute_us, send_us=7
    )


def test_worker_clocks_are_translated_by_the_fastest_acknowledgement() -> None:
    """A stamp that was long on its way must not shift a stage against the others."""
    timeline = _timeline(num_stages=2, max_microbatches=10)
    track = timeline.follow("a", arrived_s=10.0)
    timeline.sent(_microbatch(0, ("a", 0, 64), predicted_ms=(0.9, 1.2)))
    timeline.sent(_microbatch(1, ("x", 0, 3), ("a", 64, 6)))
    timeline.acked(1, 0, 0, _times(1_000, 2_000), heard_s=10.5)
    timeline.acked(1, 1, 0, _times(900_000_000, 900_001_000), heard_s=10.004)
    timeline.acked(1, 0, 1, _times(2_000, 3_000), heard_s=10.003)
    assert track.timings() == (
        MicrobatchTiming(
            epoch=1,
            seq_no=0,
            start=0,
            num_tokens=64,
            microbatch_tokens=64,
            stages=(
                StageTiming(stage=0, start_us=1_000, wait_us=5, compute_us=1_000, send_us=7),
                StageTiming(stage=1, start_us=3_000, wait_us=5, compute_us=1_000, send_us=7),
            ),
            predicted_us=(900, 1_200),
        ),
        MicrobatchTiming(
            epoch=1,
            seq_no=1,
            start=64,
            num_tokens=6,
            microbatch_tokens=9,
            stages=(StageTiming(stage=0, start_us=2_000, wait_us=5, compute_us=1_000, send_us=7),),
        ),
    )


def test_memory_is_bounded() -> None:
    """A long answer must not fill memory, nor a request that has ended."""
    timeline = _timeline(num_stages=1, max_microbatches=3)
    track, other = (timeline.follow(name, arrived_s=0.0) for name in "ab")
    for seq_no in range(100):
        timeline.sent(_microbatch(seq_no, ("a", seq_no, 1), ("b", seq_no, 1)))
        timeline.acked(1, 0, seq_no, _times(seq_no, seq_no + 1), heard_s=float(seq_no))
        timeline.acked(1, 0, seq_no, _times(seq_no, seq_no + 1), heard_s=float(seq_no))
        if seq_no == 1:
            timeline.leave("b")
    assert len(timeline._routes[1].in_flight) == 0
    assert list(timeline._tracks) == ["a"]
    assert [step.seq_no for step in track.timings()] == [0, 1, 2]
    assert (100, 3) == (track.num_parts, track.num_kept)
    assert (2, 2) == (other.num_parts, other.num_kept)


def test_times_that_come_after_the_end_are_told() -> None:
    """The last stage ends a request while earlier ones are still unheard."""
    timeline = _timeline(num_stages=2, max_microbatches=3)
    track = timeline.follow("a", arrived_s=0.0)
    timeline.sent(_microbatch(0, ("a", 0, 64)))
    timeline.acked(1, 1, 0, _times(1_000, 2_000), heard_s=0.002)
    timeline.leave("a")
    timeline.acked(1, 0, 0, _times(0, 1_000), heard_s=0.001)
    assert [[0, 1]] == [[each.stage for each in step.stages] for step in track.timings()]


def test_a_later_request_of_the_same_id_has_a_track_of_its_own() -> None:
    """Ids may come again; the first request's call may not have read its timeline yet."""
    timeline = _timeline(num_stages=1, max_microbatches=3)
    first = timeline.follow("a", arrived_s=0.0)
    timeline.sent(_microbatch(0, ("a", 0, 64)))
    timeline.leave("a")
    second = timeline.follow("a", arrived_s=1.0)
    timeline.sent(_microbatch(1, ("a", 0, 32)))
    assert ([64], [32]) == tuple(
        [step.num_tokens for step in track.timings()] for track in (first, second)
    )


def test_measured_times_come_with_what_was_predicted() -> None:
    """Once for each stage, and not where nothing was measured."""
    timeline = _timeline(num_stages=2, max_microbatches=10)
    timeline.sent(_microbatch(0, ("a", 0, 64), predicted_ms=(0.9, 1.2)))
    timeline.sent(_microbatch(1, ("a", 64, 6)))
    times = [
        timeline.acked(1, stage, seq_no, _times(0, acked_us), heard_s=1.0)
        for stage, seq_no, acked_us in ((0, 0, 1000), (0, 0, 1000), (1, 0, 0), (0, 1, 1000))
    ]
    assert times == [(0.001, 0.0009), None, None, (0.001, None)]


def test_a_track_goes_on_where_its_request_moves_to() -> None:
    """Clocks are each route's own, and stay with what was measured by them."""
    timeline = _timeline(num_stages=1, max_microbatches=10)
    timeline.begin(2, 1)
    track = timeline.follow("a", arrived_s=10.0)
    timeline.sent(_microbatch(0, ("a", 0, 64)))
    timeline.acked(1, 0, 0, _times(1_000, 2_000), heard_s=10.002)
    timeline.sent(_microbatch(1, ("a", 64, 64)))
    timeline.end(1)
    assert timeline.acked(1, 0, 1, _times(2_000, 3_000), heard_s=10.003) is None
    timeline.sent(_microbatch(0, ("a", 64, 64), epoch=2))
    timeline.acked(2, 0, 0, _times(501_000, 502_000), heard_s=10.006)
    told = [
        (each.epoch, each.start, [stage.start_us for stage in each.stages])
        for each in track.timings()
    ]
    assert [(1, 0, [1_000]), (1, 64, []), (2, 64, [5_000])] == told


def test_what_is_sent_to_a_route_that_is_gone_is_not_recorded() -> None:
    """Its workers will never tell of it."""
    timeline = _timeline(num_stages=1, max_microbatches=10)
    track = timeline.follow("a", arrived_s=0.0)
    timeline.end(1)
    timeline.sent(_microbatch(0, ("a", 0, 64)))
    assert track.num_parts == 0
