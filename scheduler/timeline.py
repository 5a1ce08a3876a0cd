"""When which stage worked on which part of a request: the picture of chunks over stages. Pure.

Kept beside the engine by the shell, one for each epoch: sent for every SendMicrobatch, acked for
every acknowledgement before the engine hears of it. Workers' clocks are their own; the offset to
the scheduler's is the least difference seen between hearing an acknowledgement and its stamp, so
that times err by the fastest way from worker to scheduler. Memory is bounded: one window of
microbatches, and max_microbatches for each request that asked for its timeline.
"""

from __future__ import annotations

import dataclasses

from scheduler.actions import SendMicrobatch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AckTimes:
    """What a stage tells with an acknowledgement; stamps are of its own monotonic clock."""

    started_us: int
    """Start of compute."""
    acked_us: int
    """>= started_us."""
    wait_us: int
    """Waited for input before started_us."""
    compute_us: int
    send_us: int
    """Time that the last finished send took; 0 on the last stage."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageTiming:
    """One stage's work on one microbatch."""

    stage: int
    start_us: int
    """Start of compute, since the request arrived."""
    wait_us: int
    compute_us: int
    send_us: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchTiming:
    """One microbatch that carried a part of the request."""

    seq_no: int
    start: int
    """First position of the part."""
    num_tokens: int
    """Of the part."""
    microbatch_tokens: int
    stages: tuple[StageTiming, ...]
    """Ascending; stages that have not acknowledged yet are missing."""
    predicted_us: tuple[int, ...] = ()
    """Compute time that was expected of each stage; empty if nothing was."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Sent:
    """A microbatch and what its stages told."""

    microbatch_tokens: int
    predicted_us: tuple[int, ...]
    acks: dict[int, AckTimes] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A request's part in a microbatch."""

    seq_no: int
    start: int
    num_tokens: int
    sent: _Sent


@dataclasses.dataclass(slots=True, kw_only=True)
class _Track:
    """What is kept for one request."""

    arrived_us: int
    steps: list[_Step] = dataclasses.field(default_factory=list)


class Timeline:
    """Records one epoch; knows only requests that were asked for."""

    def __init__(self, *, num_stages: int, max_microbatches: int) -> None:
        """Keep at most the first max_microbatches of each request."""
        self._num_stages = num_stages
        self._max_microbatches = max_microbatches
        self._offset_us: dict[int, int] = {}
        """Stage -> the scheduler's clock minus the worker's, never too small."""
        self._in_flight: dict[int, _Sent] = {}
        """By seq_no, not acknowledged by all stages."""
        self._tracks: dict[str, _Track] = {}

    def follow(self, request_id: str, *, arrived_s: float) -> None:
        """Keep the timeline of a request until it is taken."""
        self._tracks[request_id] = _Track(arrived_us=_us(arrived_s))

    def sent(self, microbatch: SendMicrobatch) -> None:
        """Note what a microbatch carries."""
        predicted_us = tuple(round(1000 * ms) for ms in microbatch.predicted_ms)
        sent = _Sent(microbatch_tokens=microbatch.num_tokens, predicted_us=predicted_us)
        self._in_flight[microbatch.seq_no] = sent
        for entry in microbatch.entries:
            track = self._tracks.get(entry.request_id)
            if track is not None and len(track.steps) < self._max_microbatches:
                track.steps.append(_Step(microbatch.seq_no, entry.start, entry.num_tokens, sent))

    def acked(self, stage: int, seq_no: int, times: AckTimes, *, heard_s: float) -> float | None:
        """Note one stage's times; heard_s is the scheduler's clock. Repeats are dropped.

        Returns:
            Predicted over measured compute time, if both are known.
        """
        offset_us = _us(heard_s) - times.acked_us
        self._offset_us[stage] = min(offset_us, self._offset_us.get(stage, offset_us))
        sent = self._in_flight.get(seq_no)
        if sent is None or stage in sent.acks:
            return None
        sent.acks[stage] = times
        if len(sent.acks) == self._num_stages:
            del self._in_flight[seq_no]
        is_known = bool(sent.predicted_us) and times.compute_us > 0
        return sent.predicted_us[stage] / times.compute_us if is_known else None

    def take(self, request_id: str) -> tuple[MicrobatchTiming, ...]:
        """Return a request's timeline and forget it; empty if it was not followed."""
        track = self._tracks.pop(request_id, None)
        if track is None:
            return ()
        return tuple(
            MicrobatchTiming(
                seq_no=step.seq_no,
                start=step.start,
                num_tokens=step.num_tokens,
                microbatch_tokens=step.sent.microbatch_tokens,
                stages=tuple(
                    self._timing(stage, times, track.arrived_us)
                    for stage, times in sorted(step.sent.acks.items())
                ),
                predicted_us=step.sent.predicted_us,
            )
            for step in track.steps
        )

    def _timing(self, stage: int, times: AckTimes, arrived_us: int) -> StageTiming:
        """Translate a worker's times to the request's."""
        return StageTiming(
            stage=stage,
            start_us=times.started_us + self._offset_us[stage] - arrived_us,
            wait_us=times.wait_us,
            compute_us=times.compute_us,
            send_us=times.send_us,
        )


def _us(time_s: float) -> int:
    """Return seconds as whole microseconds."""
    return round(time_s * 1e6)
