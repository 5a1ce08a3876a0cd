"""What scenario files do not show: text given to the sink, and planning for very long prompts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import pytest

from chunkmesh.errors import InvariantViolated
from scheduler.actions import Action, Finished, MatchPrefix, Output, Progress, SendMicrobatch
from scheduler.engine import Engine
from scheduler.engine_config import CHUNK_STRATEGIES, ChunkStrategyName, EngineConfig
from scheduler.events import Acked, Arrived, Matched, RouteFormed
from scheduler.latency_model import PipelineLatency, StageLatency
from tests.letter_text import LetterText
from tests.specs import make_spec

_CONFIG = EngineConfig(
    page_tokens=16,
    chunked_prefill_tokens=64,
    max_running_requests=16,
    max_queued_requests=16,
    load_timeout_s=1.0,
    max_outstanding_stores=0,
)


def _serve_alone(engine: Engine, actions: list[Action]) -> list[Action]:
    """Acknowledge everything on one stage until nothing is sent; every token is 65."""
    told = []
    while actions:
        action = actions.pop(0)
        told.append(action)
        if isinstance(action, SendMicrobatch):
            ids = (65,) * len(action.samples)
            acked = Acked(epoch=1, stage=0, seq_no=action.seq_no, sampled_ids=ids)
            actions += engine.handle(acked, 0.0)
        elif isinstance(action, MatchPrefix):
            matched = Matched(request_id=action.request_id, num_pages=0, lease_id=None)
            actions += engine.handle(matched, 0.0)
    return told


def test_end_token_is_not_given_to_the_text() -> None:
    """An end token is reported among the ids; its text would be shown to the user."""
    engine = Engine(_CONFIG)
    engine.handle(RouteFormed(epoch=1, num_stages=1, num_pages=4), 0.0)
    text = LetterText()
    spec = make_spec("a", 4, max_new_tokens=9, end_ids=frozenset({65}), text=text)
    told = _serve_alone(engine, engine.handle(Arrived(spec=spec), 0.0))
    assert text.pushed == []
    assert [a.token_ids for a in told if isinstance(a, Output)] == [(65,)]
    assert not engine.is_live("a")


_LENGTHS = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)
_LATENCY = PipelineLatency((StageLatency(fixed_ms=1.0, ms_per_token=0.1, ms_per_pair=1e-4),))


def _serve_lengths(engine: Engine, lengths: Sequence[int]) -> list[Action]:
    """Let prompts of these lengths arrive at once, for 8 tokens each."""
    actions: list[Action] = []
    for length in lengths:
        spec = make_spec(f"{length}", length, max_new_tokens=8)
        actions += engine.handle(Arrived(spec=spec), 0.0)
    return _serve_alone(engine, actions)


@pytest.mark.parametrize("strategy", CHUNK_STRATEGIES)
@pytest.mark.parametrize("latency", [None, _LATENCY])
def test_lengths_around_borders(
    strategy: ChunkStrategyName, latency: PipelineLatency | None
) -> None:
    """O15: no empty chunk, every token once, no token before the end; alone or together."""
    for lengths in (*((length,) for length in _LENGTHS), _LENGTHS):
        engine = Engine(dataclasses.replace(_CONFIG, chunk_strategy=strategy))
        engine.handle(RouteFormed(epoch=1, num_stages=1, num_pages=64, latency=latency), 0.0)
        told = _serve_lengths(engine, lengths)
        ends = {a.request_id: a.chunk_tokens for a in told if isinstance(a, Finished)}
        assert [sum(ends[f"{length}"]) for length in lengths] == [*lengths]
        assert all(0 < tokens <= 64 for chunk_tokens in ends.values() for tokens in chunk_tokens)
        for length in lengths:
            names = [type(a) for a in told if getattr(a, "request_id", "") == f"{length}"]
            assert names.count(Output) == 8
            assert names.index(Output) > max(i for i, n in enumerate(names) if n is Progress)
        assert engine.is_idle()


def test_ten_prompts_at_once_keep_their_chunks() -> None:
    """O15: prompts together are cut as they are alone, and get all their tokens."""
    engine = Engine(_CONFIG)
    engine.handle(RouteFormed(epoch=1, num_stages=1, num_pages=64), 0.0)
    lengths = _LENGTHS
    told = _serve_lengths(engine, lengths)
    num_chunks = {a.request_id: len(a.chunk_tokens) for a in told if isinstance(a, Finished)}
    assert [num_chunks[f"{length}"] for length in lengths] == [1, 1, 1, 1, 1, 1, 2, 2, 2, 3]
    assert sum(len(a.token_ids) for a in told if isinstance(a, Output)) == 80
    assert engine.is_idle()


def test_latency_of_other_stages_is_a_bug() -> None:
    """Predictions would be of the wrong stages; nothing may have changed."""
    engine = Engine(_CONFIG)
    with pytest.raises(InvariantViolated, match="latency of 1 stages, the route has 2"):
        engine.handle(RouteFormed(epoch=1, num_stages=2, num_pages=64, latency=_LATENCY), 0.0)
    assert engine.snapshot().epoch == 0


def test_long_prompts_are_planned_in_linear_time() -> None:
    """Four times the prompt must not cost sixteen times the planning."""

    def plan_s(prompt_tokens: int) -> float:
        engine = Engine(_CONFIG)
        engine.handle(RouteFormed(epoch=1, num_stages=1, num_pages=prompt_tokens // 16 + 1), 0.0)
        spec = make_spec("a", np.zeros(prompt_tokens, dtype=np.uint32))
        begin = time.process_time()
        told = _serve_alone(engine, engine.handle(Arrived(spec=spec), 0.0))
        assert isinstance(told[-2], Finished)
        assert sum(told[-2].chunk_tokens) == prompt_tokens
        return time.process_time() - begin

    quarter_s = min(plan_s(125_000) for _ in range(3))
    assert min(plan_s(500_000) for _ in range(2)) < 9 * quarter_s
