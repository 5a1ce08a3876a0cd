"""The race and the steps, on a clock of their own."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

import pytest
from rich.console import Console

from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.tuning.candidates import Candidate, TuneLimits, as_it_runs
from scheduler.tuning.race import Race, TunedRun
from scheduler.tuning.report import Tuned, print_tuned
from scheduler.tuning.tuner import TuneBudget, Tuner

LIMITS = TuneLimits(prompt_tokens=2048, max_tokens=1024, page_tokens=64, context_tokens=8192)
LATENCY = PipelineLatency((StageLatency(fixed_ms=5.0, ms_per_token=0.1, ms_per_pair=1e-4),) * 2)


def candidate(name: str, strategy: str = "fixed", size: int = 64) -> Candidate:
    """Return a candidate with one size."""
    return Candidate(name=name, strategy=strategy, chunk_tokens=(size,), flags=())


def run(ttft_ms: float) -> TunedRun:
    """Return a run that took so long."""
    return TunedRun(ttft_ms=ttft_ms, num_chunks=1, bubble_ratio=0.1, stage_ms=(1.0, 1.0))


def play(race: Race, times: dict[str, list[float]], rounds: int) -> list[str]:
    """Measure until the race has enough; return the order."""
    given = {name: iter(values) for name, values in times.items()}
    order = []
    while (chosen := race.next(rounds)) is not None:
        race.take(chosen, run(next(given[chosen.name])))
        order.append(chosen.name)
    return order


def test_rounds_are_interleaved_and_the_slow_drop_out() -> None:
    """Time goes to those that may win."""
    race = Race()
    race.join([candidate(name) for name in "abc"])
    times = {"a": [100.0] * 3, "b": [110.0] * 3, "c": [200.0] * 3}
    assert list("abcabab") == play(race, times, 3)
    assert {"a": 3, "b": 3, "c": 1} == {
        each.candidate.name: len(each.runs) for each in race.standings()
    }


def test_a_median_of_few_runs_below_the_winners_is_explained() -> None:
    """The table is by medians: without a word it seems to recommend the slower of two."""
    race = Race()
    race.join([candidate("a", "optimal"), candidate("b")])
    play(race, {"a": [100.0, 180.0], "b": [120.0]}, 2)
    assert ["b"] == [each.candidate.name for each in race.dropped()]
    winner = race.winner()
    assert winner is not None
    tuned = Tuned(
        limits=LIMITS,
        standings=tuple(race.standings()),
        winner=winner,
        tied=tuple(race.tied()),
        dropped=tuple(race.dropped()),
        partition=None,
        is_cut_short=False,
        latency_reason="",
    )
    with io.StringIO() as file:
        print_tuned(Console(file=file, width=200), tuned)
        shown = file.getvalue()
    assert "best time more than 15% behind the best one" in shown
    assert "runs: b\n" in shown


def test_one_slow_run_does_not_drop_a_candidate_that_was_fast_before() -> None:
    """Other work on the machine is nobody's fault."""
    race = Race()
    race.join([candidate("a"), candidate("b")])
    assert list("abab") == play(race, {"a": [100.0, 300.0], "b": [101.0, 101.0]}, 2)


@pytest.mark.parametrize(
    ("optimal_ms", "winner"), [(102.0, "optimal"), (104.0, "fixed"), (90.0, "optimal")]
)
def test_what_cannot_be_told_apart_is_decided_by_simplicity(optimal_ms: float, winner: str) -> None:
    """Three per cent of a few runs is noise; what needs no tuning goes first."""
    race = Race()
    race.join([candidate("fixed"), candidate("optimal", "optimal")])
    play(race, {"fixed": [100.0] * 3, "optimal": [optimal_ms] * 3}, 3)
    standing = race.winner()
    assert standing is not None
    assert winner == standing.candidate.name


def test_few_runs_do_not_win_against_many() -> None:
    """One lucky run of a late-comer is no measurement."""
    race = Race()
    race.join([candidate("a")])
    play(race, {"a": [100.0] * 3}, 3)
    race.join([candidate("b")])
    race.take(candidate("b"), run(95.0))
    standing = race.winner()
    assert standing is not None
    assert "a" == standing.candidate.name


class Mesh:
    """A mesh whose time to the first token is given by the chunks, and is told by a clock."""

    def __init__(self, ttft_ms: Callable[[Candidate], float]) -> None:
        """Measure by ttft_ms."""
        self.now_s = 0.0
        self.measured: list[Candidate] = []
        self._ttft_ms = ttft_ms

    def measure(self, chosen: Candidate) -> TunedRun:
        """Let the clock go on."""
        ttft_ms = self._ttft_ms(chosen)
        self.now_s += ttft_ms / 1000
        self.measured.append(chosen)
        return run(ttft_ms)

    def tuner(self, budget_s: float) -> Tuner:
        """Return a tuner of this mesh."""
        budget = TuneBudget(budget_s=budget_s, clock=lambda: self.now_s)
        return Tuner(self.measure, budget, lambda _candidate, _run: None)


def by_size(chosen: Candidate) -> float:
    """Return what two stages take: least at 384 tokens, optimal a little less."""
    if not chosen.chunk_tokens:
        return 1500.0
    sizes = itertools.chain(chosen.chunk_tokens, itertools.repeat(chosen.chunk_tokens[-1]))
    size = next(sizes)
    return 1000.0 + abs(size - 384) * 2


def test_the_steps_find_the_best_size_between_the_first_ones() -> None:
    """256 and 512 are as good; the best lies between them."""
    mesh = Mesh(by_size)
    tuner = mesh.tuner(1000)
    tuner.tune(LIMITS, None, as_it_runs("fixed", 1024))
    winner = tuner.race.winner()
    assert winner is not None
    assert (384,) == winner.candidate.chunk_tokens
    assert 5 == len(winner.runs)
    assert not tuner.is_cut_short
    assert not any(each.strategy == "dynamic" for each in mesh.measured)


def test_dynamic_chunks_are_tried_once_the_latency_is_known() -> None:
    """They begin with two and three times the best fixed size."""
    mesh = Mesh(by_size)
    mesh.tuner(1000).tune(LIMITS, LATENCY, as_it_runs("optimal", 1024))
    firsts = {each.chunk_tokens[0] for each in mesh.measured if each.strategy == "dynamic"}
    assert {768, 1024} == firsts


def test_time_is_bounded() -> None:
    """A budget is a promise; the next run is not begun if it would not end in time."""
    mesh = Mesh(by_size)
    tuner = mesh.tuner(12.0)
    tuner.tune(LIMITS, LATENCY, as_it_runs("optimal", 1024))
    assert tuner.is_cut_short
    assert mesh.now_s < 13.0
    assert tuner.race.winner() is not None
