"""Chunks that a client chose: where they end, and which are refused."""

from __future__ import annotations

import dataclasses
from collections import deque

import pytest

from chunkmesh.errors import InvalidRequest
from scheduler.actions import Finished, MatchPrefix, SendMicrobatch
from scheduler.engine import Engine
from scheduler.engine_config import ChunkStrategyName, EngineConfig
from scheduler.events import Acked, Arrived, Event, Matched, RequestSpec, RouteFormed
from scheduler.given_chunks import check_chunk_tokens, given_ends
from scheduler.latency_model import PipelineLatency, StageLatency
from tests.specs import make_spec

LATENCY = PipelineLatency(
    (StageLatency(fixed_ms=2.0, ms_per_token=0.1, ms_per_prefix_token=0.0, ms_per_pair=1e-4),) * 2
)


@pytest.mark.parametrize(
    ("sizes", "start", "end", "ends"),
    [
        ((64,), 0, 128, (64, 128)),
        ((64,), 0, 130, (64, 128, 130)),
        ((64,), 32, 130, (96, 130)),
        ((100, 50), 0, 220, (100, 150, 200, 220)),
        ((100, 50), 0, 60, (60,)),
        ((1,), 4, 5, (5,)),
    ],
)
def test_the_last_size_is_repeated(
    sizes: tuple[int, ...], start: int, end: int, ends: tuple[int, ...]
) -> None:
    """One number is a fixed size; the end is reached exactly, also behind a hit."""
    assert ends == given_ends(sizes, start, end)


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ([0], "chunk_tokens[0] is 0, must be in [1, 256]"),
        ([64, 257], "chunk_tokens[1] is 257, must be in [1, 256]"),
        ([64, 1], "cuts 5000 tokens into 4937 chunks, limit 4096"),
    ],
)
def test_what_a_microbatch_cannot_hold_is_refused(sizes: list[int], complaint: str) -> None:
    """Stages' buffers have one size, and a prompt in ones would keep all others waiting."""
    with pytest.raises(InvalidRequest) as refused:
        check_chunk_tokens(sizes, prompt_tokens=5000, max_tokens=256)
    assert complaint in str(refused.value)
    assert "chunk_tokens" == refused.value.field


def test_what_fits_passes() -> None:
    """Sizes beyond the prompt's end as well; none leaves it to the plan."""
    for sizes in ([], [256], [64, 2], [256] * 100):
        check_chunk_tokens(sizes, prompt_tokens=5000, max_tokens=256)


def finish(strategy: ChunkStrategyName, specs: list[RequestSpec]) -> dict[str, tuple[int, ...]]:
    """Run requests to their end on two stages; return the chunks of each."""
    config = EngineConfig(
        page_tokens=16,
        chunked_prefill_tokens=512,
        max_running_requests=8,
        max_queued_requests=8,
        load_timeout_s=1.0,
        max_outstanding_stores=0,
        chunk_strategy=strategy,
    )
    engine = Engine(config)
    engine.handle(RouteFormed(epoch=1, num_stages=2, num_pages=1000, latency=LATENCY), 0.0)
    assert strategy == engine.snapshot().chunk_strategy
    events: deque[Event] = deque(Arrived(spec=spec) for spec in specs)
    chunks = {}
    while events:
        for action in engine.handle(events.popleft(), 0.0):
            if isinstance(action, SendMicrobatch):
                ids = (1,) * len(action.samples)
                events.append(Acked(epoch=1, stage=0, seq_no=action.seq_no))
                events.append(Acked(epoch=1, stage=1, seq_no=action.seq_no, sampled_ids=ids))
            elif isinstance(action, MatchPrefix):
                name = action.request_id
                events.append(Matched(request_id=name, num_pages=0, lease_id=None))
            elif isinstance(action, Finished):
                chunks[action.request_id] = action.chunk_tokens
    assert engine.is_idle()
    return chunks


@pytest.mark.parametrize("strategy", ["fixed", "dynamic", "optimal"])
@pytest.mark.parametrize("sizes", [(200,), (500, 100, 37), (512, 13)])
def test_given_chunks_are_kept_by_every_strategy(
    strategy: ChunkStrategyName, sizes: tuple[int, ...]
) -> None:
    """Else a measurement would be of the plan and not of what was asked for."""
    own = dataclasses.replace(make_spec("own", 2000), chunk_tokens=sizes)
    ends = given_ends(sizes, 0, 2000)
    expected = tuple(end - start for start, end in zip((0, *ends), ends, strict=False))
    assert {"own": expected} == finish(strategy, [own])


@pytest.mark.parametrize("strategy", ["fixed", "dynamic", "optimal"])
def test_given_chunks_are_kept_among_other_prompts(strategy: ChunkStrategyName) -> None:
    """Everybody gets through, and nobody's borders are moved by another's."""
    others = [make_spec(f"other{index}", 700 * index) for index in (1, 2, 3)]
    own = dataclasses.replace(make_spec("own", 1000), chunk_tokens=(300,))
    chunks = finish(strategy, [others[0], own, *others[1:]])
    assert (300, 300, 300, 100) == chunks["own"]
    assert {"own": 1000, "other1": 700, "other2": 1400, "other3": 2100} == {
        name: sum(sizes) for name, sizes in chunks.items()
    }
