"""What scenario files do not show: text given to the sink, and planning for very long prompts."""

from __future__ import annotations

import time

import numpy as np

from scheduler.actions import Action, Finished, MatchPrefix, Output, SendMicrobatch
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import Acked, Arrived, Matched, RouteFormed
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


def test_ten_prompts_at_once_keep_their_chunks() -> None:
    """O15: prompts together are cut as they are alone, and get all their tokens."""
    engine = Engine(_CONFIG)
    engine.handle(RouteFormed(epoch=1, num_stages=1, num_pages=64), 0.0)
    lengths = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)
    actions: list[Action] = []
    for length in lengths:
        spec = make_spec(f"{length}", length, max_new_tokens=8)
        actions += engine.handle(Arrived(spec=spec), 0.0)
    told = _serve_alone(engine, actions)
    num_chunks = {a.request_id: len(a.chunk_tokens) for a in told if isinstance(a, Finished)}
    assert [num_chunks[f"{length}"] for length in lengths] == [1, 1, 1, 1, 1, 1, 2, 2, 2, 3]
    assert sum(len(a.token_ids) for a in told if isinstance(a, Output)) == 80
    assert engine.is_idle()


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
