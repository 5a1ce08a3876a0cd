"""The three steps of tuning, within a budget of time. Knows no mesh: it is told how to measure."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

from scheduler.latency_model import PipelineLatency
from scheduler.tuning.candidates import (
    Candidate,
    TuneLimits,
    dynamic_around,
    first_fixed,
    fixed_between,
)
from scheduler.tuning.race import Race, TunedRun

_STEP_ROUNDS = 2
_FINAL_ROUNDS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuneBudget:
    """How long tuning may go on."""

    budget_s: float
    clock: Callable[[], float] = time.monotonic


class Tuner:
    """Runs a race through the steps until its candidates have had their rounds, or time is out."""

    def __init__(
        self,
        measure: Callable[[Candidate], TunedRun],
        budget: TuneBudget,
        on_run: Callable[[Candidate, TunedRun], None],
    ) -> None:
        """Measure with measure; on_run hears of every run."""
        self.race = Race()
        self.is_cut_short = False
        """Whether time was out before all was measured."""
        self._measure = measure
        self._budget = budget
        self._on_run = on_run
        self._ends_s = budget.clock() + budget.budget_s
        self._took_s: list[float] = []

    def tune(
        self, limits: TuneLimits, latency: PipelineLatency | None, as_it_runs: Candidate
    ) -> None:
        """Try fixed sizes, then dynamic ones if the latency is known; the best ones again.

        Raises:
            ChunkMeshError: a prompt could not be measured.
        """
        fixed = first_fixed(limits)
        self._warm_up(as_it_runs)
        self._step([as_it_runs, *fixed], _STEP_ROUNDS)
        best = self.race.best_fixed()
        if best is not None:
            tried = [each.chunk_tokens[0] for each in fixed]
            between = fixed_between(best.candidate.chunk_tokens[0], tried, limits)
            self._step(between, _STEP_ROUNDS)
        best = self.race.best_fixed()
        if best is not None and latency is not None:
            self._step(
                dynamic_around(best.candidate.chunk_tokens[0], latency, limits), _STEP_ROUNDS
            )
        self._step([], _FINAL_ROUNDS)

    def _warm_up(self, candidate: Candidate) -> None:
        """Run one prompt that does not count: the first one finds cold memory and kernels."""
        begin_s = self._budget.clock()
        self._measure(candidate)
        self._took_s.append(self._budget.clock() - begin_s)

    def _step(self, candidates: list[Candidate], rounds: int) -> None:
        """Let candidates join, and measure until all that may win have had their rounds."""
        self.race.join(candidates)
        while (candidate := self.race.next(rounds)) is not None:
            begin_s = self._budget.clock()
            if begin_s + statistics.median(self._took_s) > self._ends_s:
                self.is_cut_short = True
                return
            run = self._measure(candidate)
            self._took_s.append(self._budget.clock() - begin_s)
            self.race.take(candidate, run)
            self._on_run(candidate, run)
