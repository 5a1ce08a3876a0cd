"""Tells in /metrics what a stage does with its time; the account itself is stage_time.py."""

from __future__ import annotations

import threading
import time

from prometheus_client import Counter

from stage_worker import metrics
from stage_worker.stage_time import IDLE_CAUSES, IdleCause, Phase, StageTime


class StageUse:
    """Owner of a worker's account; for any thread."""

    def __init__(self) -> None:
        """Begin with nothing to do, in no route."""
        self._time = StageTime(time.monotonic())
        self._lock = threading.Lock()
        self._busy: Counter | None = None
        """None in no route: then nothing is told."""
        self._idle: dict[IdleCause, Counter] = {}

    def join(self, stage: int) -> None:
        """Be a stage of a route from now on."""
        self.leave()
        with self._lock:
            self._busy = metrics.BUSY.labels(stage)
            self._idle = {cause: metrics.IDLE.labels(stage, cause) for cause in IDLE_CAUSES}

    def leave(self) -> None:
        """Tell what there is to tell of the route, and then nothing until the next one."""
        with self._lock:
            self._tell()
            self._busy, self._idle = None, {}

    def begin(self, phase: Phase) -> None:
        """Note that the compute thread enters a phase."""
        with self._lock:
            self._time.begin(phase, time.monotonic())

    def launched(self) -> None:
        """Note that the device has one more microbatch."""
        with self._lock:
            self._time.launched()

    def ended(self, started_s: float, ended_s: float) -> None:
        """Note when the device has worked on its oldest microbatch."""
        with self._lock:
            self._time.ended(started_s, ended_s)
            self._tell()

    def tell(self) -> None:
        """Bring the metrics up to now."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        spent = self._time.take(time.monotonic())
        if self._busy is None:
            return
        self._busy.inc(spent.busy_s)
        for cause, seconds in spent.idle_s.items():
            if seconds:
                self._idle[cause].inc(seconds)
