"""What a stage does with its time: computing, or waiting, and for what. Pure.

The compute thread goes from phase to phase; a stage on a device may still compute meanwhile. So a
moment is busy while the device has a microbatch or the thread works, else idle by what the thread
waits for. Times are of one monotonic clock; all time since the begin is counted once.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Literal, TypeAlias, get_args

IdleCause = Literal["bubble", "starved", "blocked"]
"""Waits for the activation of the stage before; has nothing to do; waits for a slot, that is for
the next stage."""
IDLE_CAUSES: tuple[IdleCause, ...] = get_args(IdleCause)
Phase: TypeAlias = "IdleCause | Literal['work']"


@dataclasses.dataclass(slots=True, kw_only=True)
class Spent:
    """Seconds."""

    busy_s: float = 0.0
    idle_s: dict[IdleCause, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(IDLE_CAUSES, 0.0)
    )


class StageTime:
    """Owner of the account."""

    def __init__(self, now_s: float) -> None:
        """Begin with nothing to do."""
        self._spent = Spent()
        self._counted_s = now_s
        """All time before was counted."""
        self._phases: deque[tuple[float, Phase]] = deque([(now_s, "starved")])
        """Begin of each phase that is not counted yet, ascending; the last one goes on."""
        self._num_launched = 0

    def begin(self, phase: Phase, now_s: float) -> None:
        """Note that the compute thread enters a phase."""
        self._forget_counted()
        self._phases.append((now_s, phase))

    def launched(self) -> None:
        """Note that the device has one more microbatch."""
        self._num_launched += 1

    def ended(self, started_s: float, ended_s: float) -> None:
        """Note that the device has worked on its oldest microbatch, and on nothing else then."""
        self._num_launched -= 1
        self._count_phases(started_s)
        self._spent.busy_s += max(ended_s - self._counted_s, 0.0)
        self._counted_s = max(ended_s, self._counted_s)

    def take(self, now_s: float) -> Spent:
        """Return what was spent since this was asked last, as far as it is known by now."""
        if not self._num_launched:
            self._count_phases(now_s)
        taken, self._spent = self._spent, Spent()
        return taken

    def _count_phases(self, until_s: float) -> None:
        """Count the time without a microbatch on the device."""
        while self._counted_s < until_s:
            self._forget_counted()
            end_s = min(until_s, self._phases[1][0]) if len(self._phases) > 1 else until_s
            phase, passed_s = self._phases[0][1], end_s - self._counted_s
            if phase == "work":
                self._spent.busy_s += passed_s
            else:
                self._spent.idle_s[phase] += passed_s
            self._counted_s = end_s

    def _forget_counted(self) -> None:
        """Forget phases that ended before what is still to be counted."""
        while len(self._phases) > 1 and self._phases[1][0] <= self._counted_s:
            self._phases.popleft()
