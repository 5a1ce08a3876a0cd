"""A worker's profile at its start: kept on disk from an earlier one, or measured now.

A machine that is busy is slow, evenly enough to be believed. So a start that finds a kept profile
has a short look whether the machine is much faster than that by now.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog
import torch

from chunkmesh.side_door import Readiness
from stage_worker.profile_file import ProfileSubject, read_profile, write_profile
from stage_worker.profile_plan import ProfileLimits, ProfilePoint, spread
from stage_worker.profiler import Profiler
from stage_worker.stage import Stage

_log = structlog.get_logger(__name__)
_CPU_TOKENS = 256
_DEVICE_TOKENS = 8192
_PREFIX_CHUNKS = 8
"""Longest prefix, in longest chunks."""
_MAX_ROWS = 16
_PAGE_TOKENS = 128
_BUDGET_SHARE = 0.9
"""Of the timeout, since work may take longer than foreseen."""
_MAX_KEPT_SPREAD = 0.5
"""A profile whose repeated times lie further apart is told, but not kept: no good fit comes of it,
and the next start may find a quieter machine."""
_MIN_KEPT_WORKS = 8
"""A profile of fewer different microbatches is not kept either: the machine was too busy."""
_NUM_LOOKS = 3
"""Short microbatches that are run at a start to see whether a kept profile still holds."""
_OUTDATED = 0.7
"""If they take less than this of what was kept, the machine was busy when it was measured. Slower
ones say nothing: the machine may be busy now."""
_ALMOST = 0.99
"""Most progress that is told before the end."""


class StartProfile(Protocol):
    """Finds out what microbatches take on a stage, before it serves."""

    def measure(self, stage: Stage) -> tuple[ProfilePoint, ...]:
        """Return the points; on the compute thread, and blocks it."""
        ...

    def cancel(self) -> None:
        """Let measure return soon; from any thread."""
        ...


class KeptProfile:
    """Implements StartProfile: reads the file of an earlier start, else measures and writes it.

    Also if what was kept turns out to be of a busy machine.
    """

    def __init__(self, limits: ProfileLimits, *, folder: Path, device: str, threads: int) -> None:
        """Prepare; threads are those that compute on the CPU.

        One CPU thread is timed by the processor time that it gets, so that what else runs on a busy
        machine at that moment is not taken for a property of the stage.
        """
        self._limits = limits
        self._folder = folder
        self._threads = threads
        is_one_thread = device == "cpu" and threads == 1
        self._profiler = Profiler(
            limits,
            page_tokens=_PAGE_TOKENS,
            compute_clock=time.thread_time if is_one_thread else None,
        )
        self._is_done = False

    def readiness(self) -> Readiness | None:
        """Say how far it is; None once it is done. From any thread."""
        if self._is_done:
            return None
        return Readiness(
            ready=False,
            state="profiling",
            reason=self._profiler.doing,
            progress=min(self._profiler.progress, _ALMOST),
        )

    def measure(self, stage: Stage) -> tuple[ProfilePoint, ...]:
        """Return the points; says in one log line where they are from."""
        begun_s = time.monotonic()
        runtime = ", ".join((f"torch {torch.__version__}", *_kernels(stage)))
        subject = ProfileSubject.of(
            stage.description, self._limits, runtime=runtime, threads=self._threads
        )
        points, source = read_profile(self._folder, subject), "disk"
        if points is None or self._is_outdated(stage, points):
            points, source = self._measured(stage, subject), "measured"
        seconds = round(time.monotonic() - begun_s, 2)
        _log.info("stage profiled", points=len(points), seconds=seconds, source=source)
        self._is_done = True
        return points

    def cancel(self) -> None:
        """Let measure return soon; what it has by then is not kept."""
        self._profiler.cancel()

    def _is_outdated(self, stage: Stage, points: Sequence[ProfilePoint]) -> bool:
        """Look whether the shortest chunk runs much faster than was kept."""
        chunks = [point for point in points if not point.shape.num_rows]
        if not chunks:
            return False
        shape = min(
            (point.shape for point in chunks),
            key=lambda shape: (shape.prefix_tokens, shape.chunk_tokens),
        )
        kept_us = min(point.compute_us for point in chunks if point.shape == shape)
        now_us = self._profiler.fastest_us(stage, shape, num_runs=_NUM_LOOKS)
        if now_us >= _OUTDATED * kept_us:
            return False
        _log.warning(
            "kept profile is of a slower machine and measured anew",
            kept_ms=round(kept_us / 1000, 2),
            now_ms=round(now_us / 1000, 2),
        )
        return True

    def _measured(self, stage: Stage, subject: ProfileSubject) -> tuple[ProfilePoint, ...]:
        points = self._profiler.measure(stage)
        if self._profiler.progress < 1:  # cancelled
            return points
        apart = spread(points)
        num_works = len({point.shape for point in points})
        if apart > _MAX_KEPT_SPREAD:
            _log.warning("profile is noisy and will not be kept", spread=round(apart, 2))
        elif num_works < _MIN_KEPT_WORKS:
            _log.warning("profile is short and will not be kept", works=num_works)
        else:
            write_profile(self._folder, subject, points)
        return points


def _kernels(stage: Stage) -> list[str]:
    """Return what computes on a device, as times depend on it; nothing for a CPU."""
    if stage.description.device == "cpu":
        return []
    return [each.name for each in stage.description.backends]


def profile_limits(
    *, device: str, tokens: int | None, kv_capacity_tokens: int, timeout_s: float
) -> ProfileLimits:
    """Return what a worker runs; tokens of None is what suits the device."""
    wanted = tokens or (_CPU_TOKENS if device == "cpu" else _DEVICE_TOKENS)
    chunk_tokens = min(wanted, kv_capacity_tokens)
    return ProfileLimits(
        max_chunk_tokens=chunk_tokens,
        max_prefix_tokens=min(_PREFIX_CHUNKS * chunk_tokens, kv_capacity_tokens - chunk_tokens),
        max_rows=_MAX_ROWS,
        budget_ms=_BUDGET_SHARE * timeout_s * 1000,
    )
