"""Times dummy microbatches on a stage, before it serves. Called on the compute thread.

Contents do not matter for the time: hidden states are random, prefixes are pages full of zeros, and
decode rows share a small pool, each beginning at another page.

Shapes: T tokens, D hidden size.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from stage_worker.launched import Launched, LaunchingStage
from stage_worker.orders import Entry, Microbatch, SamplingRow
from stage_worker.profile_plan import (
    ProfileLimits,
    ProfilePoint,
    ProfileShape,
    Timing,
    profile_steps,
)
from stage_worker.stage import Stage

_NUM_IDS = 64
"""Token ids are below this, since every vocabulary has as many."""


class Profiler:
    """Runs one profile; progress and cancel may be used from any thread."""

    def __init__(
        self,
        limits: ProfileLimits,
        *,
        page_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
        compute_clock: Callable[[], float] | None = None,
    ) -> None:
        """Prepare; both clocks count seconds.

        clock bounds the profile; points are told by compute_clock, which is the same if not given.
        """
        self.progress = 0.0
        """Share that is done, 0 <= progress <= 1."""
        self.doing = ""
        """The microbatch that runs, for people."""
        self._limits = limits
        self._page_tokens = page_tokens
        self._clock = clock
        self._compute_clock = compute_clock or clock
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End soon: after the microbatch that runs."""
        self._cancelled.set()

    def measure(self, stage: Stage) -> tuple[ProfilePoint, ...]:
        """Return what was timed; blocks for the budget at most, and a little more.

        The stage's pool is replaced, and left empty and as small as it can be.
        """
        begun_s = self._clock()
        dummies = _Dummies(stage, self._limits, self._page_tokens)
        points: list[ProfilePoint] = []
        steps = profile_steps(self._limits)
        try:
            step = next(steps)
            while not self._cancelled.is_set():
                self.progress, self.doing = step.progress, str(step.shape)
                started_s = self._clock()
                compute_us = self._time(stage, dummies, step.shape)
                ended_s = self._clock()
                if step.is_timed:
                    points.append(ProfilePoint(shape=step.shape, compute_us=compute_us))
                left_ms = self._limits.budget_ms - (ended_s - begun_s) * 1000
                step = steps.send(Timing(ms=(ended_s - started_s) * 1000, left_ms=left_ms))
        except StopIteration:
            self.progress = 1.0
        finally:
            stage.allocate(num_pages=1, page_tokens=1)
        return tuple(points)

    def fastest_us(self, stage: Stage, shape: ProfileShape, *, num_runs: int) -> int:
        """Return the least time of one microbatch in a few runs; leaves the stage as measure does.

        The first run may compile something, so there should be more than one.
        """
        dummies = _Dummies(stage, self._limits, self._page_tokens)
        try:
            return min(self._time(stage, dummies, shape) for _ in range(num_runs))
        finally:
            stage.allocate(num_pages=1, page_tokens=1)

    def _time(self, stage: Stage, dummies: _Dummies, shape: ProfileShape) -> int:
        """Run one microbatch and return its microseconds, >= 1."""
        microbatch = dummies.microbatch(shape)
        hidden_in_TD, hidden_out_TD = dummies.activations(microbatch.num_tokens)
        if isinstance(stage, LaunchingStage):
            compute_s = _launched_s(
                lambda: stage.launch(microbatch, hidden_in_TD, hidden_out_TD),
                lambda: _release(stage, microbatch),
            )
        else:
            started_s = self._compute_clock()
            stage.forward(microbatch, hidden_in_TD, hidden_out_TD)
            compute_s = self._compute_clock() - started_s
            _release(stage, microbatch)
        return max(round(compute_s * 1e6), 1)


def _launched_s(launch: Callable[[], Launched], release: Callable[[], None]) -> float:
    """Return the device's seconds for a microbatch that was launched while it did another.

    Served microbatches are: what the host does before its first kernel is not waited for.
    """
    launched = []
    for _ in range(2):
        launched.append(launch())
        release()
    _, second = [each.wait() for each in launched]
    return second.ended_s - second.started_s


def _release(stage: Stage, microbatch: Microbatch) -> None:
    for entry in microbatch.entries:
        stage.release(entry.row)


class _Dummies:
    """Makes microbatches and activations for a stage, whose pool it allocates."""

    def __init__(self, stage: Stage, limits: ProfileLimits, page_tokens: int) -> None:
        most_tokens = limits.max_prefix_tokens + limits.max_chunk_tokens
        self._num_pages = -(-most_tokens // page_tokens)
        self._page_tokens = page_tokens
        self._is_first = stage.description.is_first
        self._is_last = stage.description.is_last
        stage.allocate(num_pages=self._num_pages, page_tokens=page_tokens)
        most_rows = max(limits.max_chunk_tokens, limits.max_rows)
        size = (most_rows, stage.description.hidden_size)
        generator = torch.Generator().manual_seed(0)
        self._hidden_in_TD = torch.randn(size, generator=generator).to(
            stage.description.device, stage.description.dtype
        )
        self._hidden_out_TD = torch.empty_like(self._hidden_in_TD)

    def activations(self, num_tokens: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return what comes in and where to write, as far as the stage has them."""
        hidden_in_TD = None if self._is_first else self._hidden_in_TD[:num_tokens]
        hidden_out_TD = None if self._is_last else self._hidden_out_TD[:num_tokens]
        return hidden_in_TD, hidden_out_TD

    def microbatch(self, shape: ProfileShape) -> Microbatch:
        """Make a microbatch of rows that begin with it."""
        num_entries = max(shape.num_rows, 1)
        entries = tuple(self._entry(shape, row) for row in range(num_entries))
        num_tokens = sum(entry.num_tokens for entry in entries)
        sampling = (
            tuple(SamplingRow.likeliest(row, row) for row in range(shape.num_rows))
            if self._is_last
            else ()
        )
        ids = np.arange(num_tokens, dtype=np.uint32) % _NUM_IDS
        return Microbatch(
            epoch=0,
            seq_no=0,
            entries=entries,
            token_ids=ids if self._is_first else None,
            sampling=sampling,
        )

    def _entry(self, shape: ProfileShape, row: int) -> Entry:
        """Make a chunk, or one of the decode rows."""
        num_tokens = 1 if shape.num_rows else shape.chunk_tokens
        num_pages = -(-(shape.prefix_tokens + num_tokens) // self._page_tokens)
        first = row * self._num_pages // max(shape.num_rows, 1)
        page_ids = tuple((first + page) % self._num_pages for page in range(num_pages))
        return Entry(
            row=row, start=shape.prefix_tokens, num_tokens=num_tokens, new_page_ids=page_ids
        )
