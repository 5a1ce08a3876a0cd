"""Which strategy a route gets, and why."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.budget import TokenBudget
from scheduler.chunk_choice import budget_for, choose
from scheduler.engine_config import CHUNK_STRATEGIES, ChunkStrategyName
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.prefill import Prefill
from tests.model_times import CONFIG

_LATENCY = PipelineLatency((StageLatency(ms_per_token=0.065536, ms_per_pair=1e-6),))
_FLAT = PipelineLatency((StageLatency(floor_ms=5.0, ms_per_row=1.0),) * 2)


@pytest.mark.parametrize("strategy", CHUNK_STRATEGIES)
def test_what_is_asked_for_is_used(strategy: ChunkStrategyName) -> None:
    """Nothing has to be explained then."""
    choice = choose(dataclasses.replace(CONFIG, chunk_strategy=strategy), _LATENCY)
    assert (choice.strategy, choice.reason) == (strategy, "")


@pytest.mark.parametrize("strategy", ["dynamic", "optimal"])
@pytest.mark.parametrize(("latency", "word"), [(None, "not known"), (_FLAT, "grows")])
def test_without_a_sound_latency_chunks_are_fixed(
    strategy: ChunkStrategyName, latency: PipelineLatency | None, word: str
) -> None:
    """O22: a degenerate fit must not plan; that it does not must be seen."""
    choice = choose(dataclasses.replace(CONFIG, chunk_strategy=strategy), latency)
    assert choice.strategy == "fixed"
    assert strategy in choice.reason
    assert word in choice.reason


def test_dynamic_has_the_sizes_of_its_rule() -> None:
    """Its users find their numbers: C = 4096, sigma = 0.75, 32768 tokens."""
    config = dataclasses.replace(CONFIG, page_tokens=64, chunked_prefill_tokens=4096)
    budget = budget_for("dynamic", config, _LATENCY)
    prefill = Prefill(start=0, end=32768)
    budget.begin(prefill)
    sizes = [b - a for a, b in zip(prefill.borders, prefill.borders[1:], strict=False)]
    assert sizes == [4096, 3776, 3520, 3328, 3200, 3072, 2944, 2816, 2752, 2688, 576]


def test_dynamic_chunks_fit_the_buffers() -> None:
    """The rule would round up to 64 tokens, of which there is no room for more than 16."""
    config = dataclasses.replace(CONFIG, page_tokens=4, chunked_prefill_tokens=16)
    budget = budget_for("dynamic", config, _LATENCY)
    prefill = Prefill(start=0, end=100)
    budget.begin(prefill)
    assert isinstance(budget, TokenBudget)
    assert prefill.borders == (0, 16, 32, 48, 64, 80, 96, 100)
