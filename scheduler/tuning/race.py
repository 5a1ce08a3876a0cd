"""Which candidate to measure next, so that a bounded time goes to those that may win. Pure.

Rounds are interleaved, so that a machine's moods hit all alike; whoever is far behind the best
drops out. Other work only ever adds time, so the least time tells who drops out.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from scheduler.tuning.candidates import Candidate

DROP_RATIO = 1.15
"""Whose best time is more than this of the best one's is not measured again."""
TIE_RATIO = 1.03
"""Medians of a few runs that are nearer than this cannot be told apart."""
_PREFERRED = ("optimal", "fixed", "dynamic")
"""Among those that cannot be told apart: what needs no tuning, then what is simplest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TunedRun:
    """One prompt that was measured."""

    ttft_ms: float
    num_chunks: int
    bubble_ratio: float
    """Of its prefill; in [0, 1)."""
    stage_ms: tuple[float, ...]
    """Compute of all its chunks, by stage."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A candidate and all its runs, at least one."""

    candidate: Candidate
    runs: tuple[TunedRun, ...]

    @property
    def best_ms(self) -> float:
        """Least time to the first token."""
        return min(run.ttft_ms for run in self.runs)

    @property
    def median_ms(self) -> float:
        """Median time to the first token."""
        return statistics.median(run.ttft_ms for run in self.runs)


class Race:
    """Measurements of all steps; candidates join one step after the other."""

    def __init__(self) -> None:
        """Begin without candidates."""
        self._runs: dict[Candidate, list[TunedRun]] = {}

    def join(self, candidates: Sequence[Candidate]) -> None:
        """Add candidates; those known keep their runs."""
        for candidate in candidates:
            self._runs.setdefault(candidate, [])

    def next(self, rounds: int) -> Candidate | None:
        """Return whom to measure next, until all that may win have had so many rounds."""
        unmeasured = [each for each, runs in self._runs.items() if not runs]
        if unmeasured:
            return unmeasured[0]
        alive = [each.candidate for each in self._alive() if len(each.runs) < rounds]
        return min(alive, key=lambda each: len(self._runs[each]), default=None)

    def take(self, candidate: Candidate, run: TunedRun) -> None:
        """Note a measurement."""
        self._runs[candidate].append(run)

    def standings(self) -> list[Standing]:
        """Return all that were measured, in the order in which they joined."""
        return [
            Standing(candidate=candidate, runs=tuple(runs))
            for candidate, runs in self._runs.items()
            if runs
        ]

    def best_fixed(self) -> Standing | None:
        """Return the best fixed size so far, if one was measured."""
        fixed = [
            each
            for each in self.standings()
            if each.candidate.strategy == "fixed" and each.candidate.chunk_tokens
        ]
        return min(fixed, key=lambda each: each.best_ms, default=None)

    def winner(self) -> Standing | None:
        """Return the best of the final; of those that are alike, the simplest to set."""
        return min(self.tied(), key=_preference, default=None)

    def tied(self) -> list[Standing]:
        """Return those of the final that cannot be told apart from its fastest."""
        final = self._final()
        least_ms = min((each.median_ms for each in final), default=0.0)
        return [each for each in final if each.median_ms <= TIE_RATIO * least_ms]

    def dropped(self) -> list[Standing]:
        """Return those whose best time was too far behind the best one's."""
        alive = self._alive()
        return [each for each in self.standings() if each not in alive]

    def _final(self) -> list[Standing]:
        """Return those with the most runs; one less is a round that time has cut short."""
        alive = self._alive()
        most = max((len(each.runs) for each in alive), default=0)
        return [each for each in alive if len(each.runs) >= most - 1]

    def _alive(self) -> list[Standing]:
        standings = self.standings()
        limit_ms = DROP_RATIO * min((each.best_ms for each in standings), default=0.0)
        return [each for each in standings if each.best_ms <= limit_ms]


def _preference(standing: Standing) -> tuple[int, float]:
    return _PREFERRED.index(standing.candidate.strategy), standing.median_ms
