"""When a device worked on a microbatch, told without keeping the launching thread waiting.

A GPU's own events give the length; when it ended is seen by whoever waits for the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from stage_worker.launched import Finished
from stage_worker.stage import StageOutput


class DeviceSpan:
    """Implements launched.Launched for work between begin and end on this thread's stream."""

    def __init__(self, device: torch.device) -> None:
        """Begin here."""
        self._tell: Callable[[], StageOutput] = StageOutput
        self._begin: torch.cuda.Event | None = None
        self._end: torch.cuda.Event | None = None
        self._started_s = self._ended_s = time.monotonic()
        if device.type == "cuda":
            # Waiting for a blocking event sleeps.
            self._begin, self._end = (
                torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            self._begin.record()

    def end(self, tell: Callable[[], StageOutput]) -> None:
        """End here; once. tell returns the output, once the device has come here."""
        self._tell = tell
        self._ended_s = time.monotonic()
        if self._end is not None:
            self._end.record()

    def took_s(self) -> float:
        """Return the time between begin and end, which it waits for."""
        finished = self.wait()
        return finished.ended_s - finished.started_s

    def wait(self) -> Finished:
        """See Launched."""
        started_s, ended_s = self._started_s, self._ended_s
        if self._begin is not None and self._end is not None:
            self._end.synchronize()
            ended_s = time.monotonic()
            started_s = ended_s - self._begin.elapsed_time(self._end) / 1000
        return Finished(output=self._tell(), started_s=started_s, ended_s=ended_s)
