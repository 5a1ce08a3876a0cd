"""A scripted stage whose microbatches take known times, by a clock that does not tick by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scheduler.latency_model import Work
from stage_worker.orders import Microbatch
from stage_worker.profile_plan import ProfileLimits, ProfilePoint
from stage_worker.profiler import Profiler
from stage_worker.stage import Stage, StageOutput
from tests.scripted_stage import Script, ScriptedStage


class ScriptedClock:
    """Counts the seconds that stages say their work takes."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


class TimedStage(ScriptedStage):
    """Lets its clock go on by what a microbatch takes."""

    def __init__(
        self, layer: int, model_layers: int, time_ms: Callable[[Work], float], clock: ScriptedClock
    ) -> None:
        super().__init__(layer, layer + 1, model_layers, Script())
        self.time_ms = time_ms
        self.clock = clock
        self.num_timed = 0

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Run a profile's microbatch by time alone, others as scripted."""
        if microbatch.epoch:
            return super().forward(microbatch, hidden_in_TD, hidden_out_TD)
        self._grow(microbatch)
        self.clock.now_s += self.time_ms(work_of(microbatch)) / 1000
        self.num_timed += 1
        return StageOutput()


class TimedProfile:
    """Implements StartProfile for a TimedStage; keeps nothing."""

    def __init__(self, limits: ProfileLimits, clock: ScriptedClock) -> None:
        self._profiler = Profiler(limits, page_tokens=16, clock=clock)

    def measure(self, stage: Stage) -> tuple[ProfilePoint, ...]:
        """Measure at once."""
        return self._profiler.measure(stage)

    def cancel(self) -> None:
        """Let it be."""


def work_of(microbatch: Microbatch) -> Work:
    """Return what a microbatch asks of a stage; entries of one token are decode rows."""
    work = Work()
    for entry in microbatch.entries:
        if entry.num_tokens == 1:
            work += Work.of_rows([entry.start + 1])
        else:
            work += Work.of_chunk(entry.start, entry.start + entry.num_tokens)
    return work
