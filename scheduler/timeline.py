"""When which stage worked on which part of a request: the picture of chunks over stages. Pure.

Kept beside the engine by the shell, one for all routes: sent for every SendMicrobatch, acked for
every acknowledgement before the engine hears of it. A request's track goes on when it moves to
another route. Workers' clocks are their own; the offset to the scheduler's is the least difference
seen between hearing an acknowledgement and its stamp, so that times err by the fastest way from
worker to scheduler. Memory is bounded: one window of microbatches for each route, and
max_microbatches for each request that runs.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import NamedTuple

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


class MeasuredTime(NamedTuple):
    """How long a stage has computed one microbatch; a tuple, as one is made for each."""

    measured_s: float
    """> 0."""
    predicted_s: float | None
    """None if nothing was expected."""


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

    epoch: int
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

    epoch: int
    seq_no: int
    microbatch_tokens: int
    predicted_us: tuple[int, ...]
    offset_us: dict[int, int]
    """That of its route."""
    acks: dict[int, AckTimes] = dataclasses.field(default_factory=dict)


class _Route:
    """What is in flight on one route, and the clocks of its workers."""

    def __init__(self, num_stages: int) -> None:
        self.num_stages = num_stages
        self.offset_us: dict[int, int] = {}
        """Stage -> the scheduler's clock minus the worker's, never too small."""
        self.in_flight: dict[int, _Sent] = {}
        """By seq_no, not acknowledged by all stages."""


class Track:
    """A request's parts in microbatches, of any route; grows while it runs, and a little after.

    What stages tell of parts that had been sent comes in also when the request has ended.
    """

    def __init__(self, *, arrived_us: int, max_microbatches: int) -> None:
        """Begin without parts."""
        self.arrived_us = arrived_us
        """On the scheduler's clock."""
        self.num_parts = 0
        """All that were sent; the first max_microbatches are kept."""
        self._max_microbatches = max_microbatches
        self._spans = array("I")
        """Start and number of tokens of each part in turn; pairs would take five times the room."""
        self._sent: list[_Sent] = []

    @property
    def num_kept(self) -> int:
        """Parts that timings() tells."""
        return len(self._sent)

    def add(self, start: int, num_tokens: int, sent: _Sent) -> None:
        """Note one more part."""
        self.num_parts += 1
        if len(self._sent) < self._max_microbatches:
            self._spans.extend((start, num_tokens))
            self._sent.append(sent)

    def timings(self, parts: slice = slice(None)) -> tuple[MicrobatchTiming, ...]:
        """Return what is known by now of some parts, all by default, in the order sent."""
        starts, lengths = self._spans[::2][parts], self._spans[1::2][parts]
        spans = zip(starts, lengths, self._sent[parts], strict=True)
        return tuple(
            MicrobatchTiming(
                epoch=sent.epoch,
                seq_no=sent.seq_no,
                start=start,
                num_tokens=num_tokens,
                microbatch_tokens=sent.microbatch_tokens,
                stages=tuple(
                    self._timing(stage, times, sent.offset_us[stage])
                    for stage, times in sorted(sent.acks.items())
                ),
                predicted_us=sent.predicted_us,
            )
            for start, num_tokens, sent in spans
        )

    def _timing(self, stage: int, times: AckTimes, offset_us: int) -> StageTiming:
        """Translate a worker's times to the request's."""
        return StageTiming(
            stage=stage,
            start_us=times.started_us + offset_us - self.arrived_us,
            wait_us=times.wait_us,
            compute_us=times.compute_us,
            send_us=times.send_us,
        )


class Timeline:
    """Records the routes that stand."""

    def __init__(self, *, max_microbatches: int) -> None:
        """Keep at most the first max_microbatches of each request."""
        self._max_microbatches = max_microbatches
        self._routes: dict[int, _Route] = {}
        """By epoch."""
        self._tracks: dict[str, Track] = {}
        """Of the requests that are followed."""

    def begin(self, epoch: int, num_stages: int) -> None:
        """Record a route that stands."""
        self._routes[epoch] = _Route(num_stages)

    def end(self, epoch: int) -> None:
        """Forget what is in flight on a route that is gone; tracks keep what its stages told."""
        self._routes.pop(epoch, None)

    def follow(self, request_id: str, *, arrived_s: float) -> Track:
        """Record a request until it is left."""
        track = Track(
            arrived_us=to_us(arrived_s),
            max_microbatches=self._max_microbatches,
        )
        self._tracks[request_id] = track
        return track

    def leave(self, request_id: str) -> None:
        """Record no more parts of a request; nothing if it is not followed."""
        self._tracks.pop(request_id, None)

    def sent(self, microbatch: SendMicrobatch) -> None:
        """Note what a microbatch carries; nothing if its route is gone."""
        route = self._routes.get(microbatch.epoch)
        if route is None:
            return
        sent = _Sent(
            epoch=microbatch.epoch,
            seq_no=microbatch.seq_no,
            microbatch_tokens=microbatch.num_tokens,
            predicted_us=tuple([round(1000 * ms) for ms in microbatch.predicted_ms]),
            offset_us=route.offset_us,
        )
        route.in_flight[microbatch.seq_no] = sent
        for entry in microbatch.entries:
            track = self._tracks.get(entry.request_id)
            if track is not None:
                track.add(entry.start, entry.num_tokens, sent)

    def acked(
        self, epoch: int, stage: int, seq_no: int, times: AckTimes, *, heard_s: float
    ) -> MeasuredTime | None:
        """Note one stage's times; heard_s is the scheduler's clock. Repeats are dropped.

        Returns:
            Measured compute time, if that is news, and what was expected.
        """
        route = self._routes.get(epoch)
        if route is None:
            return None
        offset_us = to_us(heard_s) - times.acked_us
        route.offset_us[stage] = min(offset_us, route.offset_us.get(stage, offset_us))
        sent = route.in_flight.get(seq_no)
        if sent is None or stage in sent.acks:
            return None
        sent.acks[stage] = times
        if len(sent.acks) == route.num_stages:
            del route.in_flight[seq_no]
        if times.compute_us <= 0:
            return None
        predicted_s = sent.predicted_us[stage] / 1e6 if sent.predicted_us else None
        return MeasuredTime(times.compute_us / 1e6, predicted_s)


def to_us(time_s: float) -> int:
    """Return seconds as whole microseconds."""
    return round(time_s * 1e6)
