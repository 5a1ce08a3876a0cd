"""When chunks are through a pipeline with its links and its in-flight window; judges plans. Pure.

First as if the window let in all at once, then with the entries that this leaves at the earliest,
and so on: each round is a bound from below, and one that changes nothing is the truth. Few rounds
do, unless the window holds chunks back all the time; then they are followed one by one.
Stages that are alike and next to each other are looked at together: the critical path crosses all
of them with one chunk, the one that takes longest from stage to stage.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from scheduler.latency_model import FloatArray, PipelineLatency
from scheduler.pipeline_time import NO_LINK, LinkTime, chunk_times_ms
from scheduler.window_time import windowed_finish_ms

_MAX_ROUNDS = 12
_ROUNDING = 1e-13
"""A round that moves nothing by more, relatively, changes nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WindowedPipeline:
    """Stages, links and a window."""

    latency: PipelineLatency
    link: LinkTime = NO_LINK
    """The same between all stages."""
    window: int | None = None
    """Most chunks inside the pipeline, >= 1; None lets in all."""

    @property
    def num_stages(self) -> int:
        """Stages, >= 1."""
        return self.latency.num_stages

    @property
    def travel_ms(self) -> float:
        """What a chunk of no tokens needs on all links together."""
        return (self.num_stages - 1) * self.link.latency_ms

    @property
    def may_wait(self) -> bool:
        """Whether the window may keep a full pipeline of chunks that are alike from being busy."""
        return self.window is not None and (self.window < self.num_stages or self.link != NO_LINK)

    def full_ms(self, num_fills: float) -> float:
        """Return the time of chunks that hardly wait for the window.

        A window of them lasts as long as one of them is on its way. Infinite if they always wait.

        Args:
            num_fills: what one takes on all stages but the slowest, over that on the slowest.

        """
        if self.window is None or not self.may_wait:
            return 0.0
        num_spare = self.window - 1 - num_fills
        return self.travel_ms / num_spare if num_spare > 0 else math.inf

    def finish_ms(self, starts: FloatArray, stops: FloatArray, most_ms: float = math.inf) -> float:
        """Return when the last of these chunks, which may be of several prompts, leaves.

        If that is more than most_ms, perhaps only a bound that is more as well: much sooner.
        """
        runs = self._runs(starts, stops)
        tokens = stops - starts
        window = self.window or len(starts)
        entered_ms = np.zeros(len(starts))
        left_ms = self._left_ms(runs, entered_ms, tokens)
        for _ in range(_MAX_ROUNDS):
            if window >= len(starts) or left_ms[-1] > most_ms:
                return float(left_ms[-1])
            entered_ms[window:] = left_ms[:-window]
            again_ms = self._left_ms(runs, entered_ms, tokens)
            if (again_ms - left_ms).max() <= _ROUNDING * again_ms[-1]:
                return float(again_ms[-1])
            left_ms = again_ms
        times_ms = chunk_times_ms(self.latency, starts, stops)
        return float(windowed_finish_ms(times_ms, tokens, self.link, window=window)[-1, -1])

    def _left_ms(self, runs: list[_Run], entered_ms: FloatArray, tokens: FloatArray) -> FloatArray:
        """Return when chunks leave that enter the first stage's queue at these times."""
        busy_ms = tokens * self.link.ms_per_token
        left_ms = runs[0].left_ms(entered_ms)
        for run in runs[1:]:
            sent_ms = _serve(left_ms, busy_ms) if self.link.ms_per_token else left_ms
            left_ms = run.left_ms(sent_ms + self.link.latency_ms)
        return left_ms

    def _runs(self, starts: FloatArray, stops: FloatArray) -> list[_Run]:
        """Look at stages in a row that are alike, as far as a link between them is no slower."""
        times_ms = {stage: stage.chunks_ms(starts, stops) for stage in set(self.latency.stages)}
        sent_ms = (stops - starts) * self.link.ms_per_token
        runs: list[_Run] = []
        for stage, alike in itertools.groupby(self.latency.stages):
            own_ms, count = times_ms[stage], len(list(alike))
            done_ms = np.cumsum(own_ms)
            if count > 1 and not (sent_ms[1:] <= own_ms[:-1]).all():
                runs += [_Run(own_ms, done_ms, None)] * count
                continue
            crossed_ms = (count - 1) * (own_ms + sent_ms + self.link.latency_ms)
            runs.append(_Run(own_ms, done_ms, crossed_ms if count > 1 else None))
        return runs


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """Stages in a row that are alike; [chunks] each."""

    own_ms: FloatArray
    """On one of them."""
    done_ms: FloatArray
    """On one of them with those before."""
    crossed_ms: FloatArray | None
    """From the first of them to the last, if a chunk waits nowhere; None if there is only one."""

    def left_ms(self, arrived_ms: FloatArray) -> FloatArray:
        """Return when chunks leave the last of them that arrive at the first at these times."""
        waited_ms = np.maximum.accumulate(arrived_ms - (self.done_ms - self.own_ms))
        if self.crossed_ms is not None:
            waited_ms = np.maximum.accumulate(waited_ms + self.crossed_ms)
        left_ms: FloatArray = self.done_ms + waited_ms
        return left_ms


def _serve(ready_ms: FloatArray, busy_ms: FloatArray) -> FloatArray:
    """Return when a link has sent each: max(end of the one before, ready) + busy."""
    sent_ms = np.cumsum(busy_ms)
    waited_ms: FloatArray = np.maximum.accumulate(ready_ms - (sent_ms - busy_ms))
    return sent_ms + waited_ms
