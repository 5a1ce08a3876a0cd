"""When a stage is given up because it does not acknowledge a microbatch. Pure; one a route.

The time of a stage for a microbatch begins when nothing else can hold it up: it has acknowledged
the one before, the stage before has acknowledged this one (for the first stage: it was sent), and
the stage behind has acknowledged the one before, for else an activation may wait for a slot there.
It lasts 4 times what is predicted, at least the floor. Ten times that is given to a shape's first
microbatch on a stage, for which kernels may be compiled, and where nothing is predicted.

A machine that is merely slow must not lose its stages: where stages lately took longer than
predicted, they get as much more time; pages copied in the stream count; and time in which the
scheduler itself stood still is nobody's lateness.
"""

from __future__ import annotations

import dataclasses
from collections import deque

from scheduler.events import Acked, RouteFormed
from scheduler.latency_model import Work

CPU_FLOOR_S = 2.0
GPU_FLOOR_S = 0.5
TIMES_PREDICTED = 4.0
TIMES_FIRST = 10.0
SLOWEST_COPY_BYTES_PER_S = 100e6
"""Of pages that are copied in the stream, on the slowest machine that is no fault."""
_FADES = 0.9
"""What is left of a stage's slowness with each microbatch that is as fast as predicted."""
_LEAST_MS = 0.01
"""Shorter predictions say nothing of how slow a stage is."""

Shape = tuple[int, int, int]
"""Powers of two above the tokens of chunks, the decode rows, and the tokens that they look at."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A stage that is beyond its deadline."""

    stage: int
    reason: str
    """Names the stage, the microbatch and the figures."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Sent:
    """A microbatch that some stage has not acknowledged; times are of the patient clock."""

    seq_no: int
    sent_s: float
    predicted_ms: tuple[float, ...]
    is_known: list[bool]
    """By stage, whether it has computed this shape before; grows with later acknowledgements."""
    copies_s: float
    """What the pages may take that are copied in the stream before it."""
    acked_s: list[float | None]
    """When each stage has acknowledged it; the last one may be heard before the first."""
    num_waiting: int
    """Stages that have not."""


class StageDeadlines:
    """Owner of when the stages of a route were heard."""

    def __init__(self, formed: RouteFormed, floor_s: float | None) -> None:
        """Begin with nothing sent; floor_s None is that of the devices, 0 gives up nobody."""
        num_stages = formed.num_stages
        own_floor_s = GPU_FLOOR_S if formed.is_on_gpus else CPU_FLOOR_S
        self._floor_s = own_floor_s if floor_s is None else floor_s
        self._page_s = max(formed.known_page_bytes) / SLOWEST_COPY_BYTES_PER_S
        self._deaf_s = 0.0
        """Time in which the scheduler stood still; the patient clock leaves it out."""
        self._sent: deque[_Sent] = deque()
        """In the order of seq_no."""
        self._num_acked = [0] * num_stages
        self._heard_s = [0.0] * num_stages
        """When each stage has acknowledged last."""
        self._shapes: dict[Shape, list[bool]] = {}
        """By stage, whether it has computed a shape in this epoch."""
        self._slowness = [1.0] * num_stages
        """Measured over predicted time of late."""
        self._copies_s = 0.0
        """Of copies that were ordered since the last microbatch."""
        self.is_over = False
        """Whether a stage was found beyond its deadline."""

    def copied(self, num_pages: int) -> None:
        """Note that pages are copied in the stream before the next microbatch."""
        self._copies_s += num_pages * self._page_s

    def sent(self, seq_no: int, work: Work, predicted_ms: tuple[float, ...], now_s: float) -> None:
        """Note a microbatch."""
        if not self._floor_s:
            return
        num_stages, looked_at = len(self._num_acked), work.prefix_tokens + work.row_tokens
        shape = work.new_tokens.bit_length(), work.num_rows.bit_length(), looked_at.bit_length()
        if (is_known := self._shapes.get(shape)) is None:
            is_known = self._shapes[shape] = [False] * num_stages
        self._sent.append(
            _Sent(
                seq_no=seq_no,
                sent_s=now_s - self._deaf_s,
                predicted_ms=predicted_ms,
                is_known=is_known,
                copies_s=self._copies_s,
                acked_s=[None] * num_stages,
                num_waiting=num_stages,
            )
        )
        self._copies_s = 0.0

    def acked(self, acked: Acked, now_s: float) -> None:
        """Note that a stage has acknowledged its next microbatch."""
        if not self._floor_s:
            return
        stage = acked.stage
        sent = self._sent[acked.seq_no - self._sent[0].seq_no]
        self._num_acked[stage] += 1
        sent.acked_s[stage] = self._heard_s[stage] = now_s - self._deaf_s
        sent.is_known[stage] = True
        if sent.predicted_ms:
            ratio = acked.compute_ms / max(sent.predicted_ms[stage], _LEAST_MS)
            faded = self._slowness[stage] * _FADES
            self._slowness[stage] = max(faded, ratio)
        sent.num_waiting -= 1
        if not sent.num_waiting:
            self._sent.popleft()

    def stood_still(self, deaf_s: float) -> None:
        """Note that the scheduler heard nothing for so long, by its own fault."""
        self._deaf_s += deaf_s

    def overdue(self, now_s: float) -> Overdue | None:
        """Return the first stage beyond its deadline, once in an epoch."""
        if not self._sent or self.is_over:
            return None
        patient_s = now_s - self._deaf_s
        for stage in range(len(self._num_acked)):
            if (late := self._late(stage, patient_s)) is not None:
                self.is_over = True
                return late
        return None

    def _late(self, stage: int, patient_s: float) -> Overdue | None:
        """Look at the one microbatch that a stage may be computing."""
        index = self._num_acked[stage] - self._sent[0].seq_no
        if index >= len(self._sent):
            return None
        sent = self._sent[index]
        is_held_up = stage + 1 < len(self._num_acked) and self._num_acked[stage + 1] < sent.seq_no
        came_s = sent.acked_s[stage - 1] if stage else sent.sent_s
        if came_s is None or is_held_up:
            return None
        start_s = max(*self._heard_s[stage : stage + 2], came_s)
        limit_s, why = self._limit_s(stage, sent)
        waited_s = patient_s - start_s
        if waited_s <= limit_s:
            return None
        reason = (
            f"stage {stage} has not acknowledged microbatch {sent.seq_no} after {waited_s:.2f} s,"
            f" its deadline was {limit_s:.2f} s: {why}"
        )
        return Overdue(stage=stage, reason=reason)

    def _limit_s(self, stage: int, sent: _Sent) -> tuple[float, str]:
        """Return how long a stage may take, and why."""
        copies = f" + {sent.copies_s:.2f} s for copies of pages" if sent.copies_s else ""
        if not sent.predicted_ms:
            why = f"{TIMES_FIRST:g} times the floor, without a prediction{copies}"
            return TIMES_FIRST * self._floor_s + sent.copies_s, why
        predicted_s = sent.predicted_ms[stage] / 1000
        slowness = max(1.0, *self._slowness)
        limit_s = max(self._floor_s, TIMES_PREDICTED * slowness * predicted_s)
        why = (
            f"{TIMES_PREDICTED:g} times the predicted {predicted_s:.3f} s, stages being"
            f" {slowness:.1f} times as slow, and at least {self._floor_s:g} s{copies}"
        )
        if not sent.is_known[stage]:
            limit_s, why = TIMES_FIRST * limit_s, f"{TIMES_FIRST:g} times on a new shape: {why}"
        return limit_s + sent.copies_s, why
