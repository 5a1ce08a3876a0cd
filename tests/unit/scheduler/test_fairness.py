"""Who waits for whom, in simulated pipelines: the engine's own decisions on a fake clock."""

from __future__ import annotations

import dataclasses
import itertools
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.engine_config import ChunkStrategyName
from scheduler.latency_model import TERMS, PipelineLatency, StageLatency
from scheduler.simulator import Simulation
from tests.model_times import CONFIG, arrival, h200_pipeline, simulate, watch

STRATEGIES = get_args(ChunkStrategyName)
_TEN_MS = PipelineLatency((StageLatency(ms_per_token=10 / 64, ms_per_row=0.05),) * 2)
"""A chunk of 64 tokens takes 10 ms on each of two stages."""
_SMALL = dataclasses.replace(CONFIG, page_tokens=16, chunked_prefill_tokens=64)


def _longest_s(done: Simulation) -> float:
    """Return the time of the longest microbatch on a stage."""
    return max(span.end_s - span.start_s for each in done.microbatches for span in each.spans)


def test_short_behind_a_million_tokens() -> None:
    """It rides along: what is in front of it, and its own way through the stages, is all it waits.

    Of the long prompt's microbatches two may be at the first stage already.
    """
    latency = h200_pipeline(4)
    alone = simulate([arrival("long", 1 << 20)], latency, known=latency)
    both = simulate(
        [arrival("long", 1 << 20), *(arrival(f"s{t}", 100, at_s=t) for t in (20, 70.05, 120.1))],
        latency,
        known=latency,
    )
    long, *short = both.requests
    chunk_s = _longest_s(alone)
    worst_s = max(each.ttft_s for each in short)
    print(
        f"100 tokens behind 2**20: {worst_s:.3f} s, {worst_s / chunk_s:.1f} chunks of {chunk_s} s"
    )
    assert worst_s < (2 + 4 + 0.1) * chunk_s
    assert long.ttft_s < 1.001 * alone.requests[0].ttft_s


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nobody_stands_still(strategy: ChunkStrategyName) -> None:
    """O30 (b): 2000 chunks of 10 ms, a stream that decodes, and after a second 20 tokens."""
    config = dataclasses.replace(_SMALL, chunk_strategy=strategy)
    long, stream = arrival("long", 2000 * 64), arrival("stream", 16, at_s=0.1, new=300)
    alone = simulate([long, stream], _TEN_MS, config=config, known=_TEN_MS)
    short = arrival("short", 20, at_s=1.1)
    done = simulate([long, stream, short], _TEN_MS, config=config, known=_TEN_MS)
    total, decoding, late = done.requests
    gaps_s = [b - a for a, b in itertools.pairwise(decoding.token_times_s)]
    assert late.ttft_s <= 0.2
    assert max(gaps_s) <= 0.05
    only_s = simulate([long], _TEN_MS, config=config, known=_TEN_MS).requests[0].ttft_s
    assert total.ttft_s <= 1.05 * only_s
    assert total.ttft_s <= 1.01 * alone.requests[0].ttft_s


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("depth", [-2, 0])
def test_one_running_request_in_one_microbatch(strategy: ChunkStrategyName, depth: int) -> None:
    """O30 (a): neither the window nor the row that it holds itself may keep a prompt waiting."""
    config = dataclasses.replace(
        _SMALL, max_running_requests=1, pp_async_batch_depth=depth, chunk_strategy=strategy
    )
    done = simulate(
        [arrival("a", 200, new=3), arrival("b", 200)], _TEN_MS, config=config, known=_TEN_MS
    )
    assert [len(request.token_times_s) for request in done.requests] == [3, 1]
    assert [len(each.microbatch.entries) for each in done.microbatches] == [1] * (4 + 2 + 4)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 32),
    every_ms=st.integers(8, 60),
    num_chunks=st.integers(20, 80),
    know=st.booleans(),
)
@example(tokens=29, every_ms=8, num_chunks=60, know=True)
@example(tokens=29, every_ms=8, num_chunks=60, know=False)
@example(tokens=29, every_ms=8, num_chunks=27, know=True)
@example(tokens=29, every_ms=8, num_chunks=27, know=False)
def test_a_stream_of_short_prompts_does_not_starve_a_long_one(
    strategy: ChunkStrategyName, tokens: int, every_ms: int, num_chunks: int, *, know: bool
) -> None:
    """It keeps half of each microbatch, or every second one: it takes about twice as long at most.

    Whatever the short ones ask for: they may ask for all that there is.
    """
    config = dataclasses.replace(_SMALL, chunk_strategy=strategy)
    long = arrival("long", num_chunks * 64)
    alone_s = num_chunks * 0.01
    stream = [
        arrival(f"s{i}", tokens, at_s=i * every_ms / 1000)
        for i in range(round(3 * alone_s / (every_ms / 1000)))
    ]
    known = _TEN_MS if know else None
    done = simulate([long, *stream], _TEN_MS, config=config, known=known)
    assert done.requests[0].ttft_s <= 2.1 * alone_s + 0.1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("paid_ms", [2.0, 8.0])
@pytest.mark.parametrize("tokens", [60, 100, 200])
def test_a_flood_of_short_prompts_leaves_a_long_one_its_half(
    strategy: ChunkStrategyName, paid_ms: float, tokens: int
) -> None:
    """They ask for twice what there is, and so ever older ones wait to ride.

    Half is of what a microbatch can hold beside what each one pays anyway. The long prompt has
    no whole number of chunks: its tail must not wait among the short ones.
    """
    stage = StageLatency(ms_per_token=10 / 256, fixed_ms=paid_ms)
    latency = PipelineLatency((stage,) * 2)
    config = dataclasses.replace(
        _SMALL, chunk_strategy=strategy, chunked_prefill_tokens=1024, max_running_requests=1024
    )
    long = arrival("long", 5 * 1024 + 100)
    alone_s = simulate([long], latency, config=config, known=latency).requests[0].ttft_s
    every_s = tokens * 0.01 / 256 / 2
    flood = [
        arrival(f"s{i}", tokens, at_s=i * every_s) for i in range(round(2.5 * alone_s / every_s))
    ]
    done = simulate([long, *flood], latency, config=config, known=latency)
    slowed = done.requests[0].ttft_s / alone_s
    print(f"{strategy}, {tokens} tokens, {paid_ms} ms paid: {slowed:.2f} times as long as alone")
    assert slowed <= 2.1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stream_of_middling_prompts_does_not_starve_a_long_one(
    strategy: ChunkStrategyName,
) -> None:
    """Too long to ride along, and half of all that there is: by response ratio all go on.

    Whoever waits, waits no more than its length asks for.
    """
    config = dataclasses.replace(_SMALL, chunk_strategy=strategy)
    long = arrival("long", 400 * 64)
    middling = [arrival(f"m{i}", 20 * 64, at_s=0.1 + 0.4 * i) for i in range(25)]
    done = simulate([long, *middling], _TEN_MS, config=config, known=_TEN_MS)
    slowed = [done.requests[0].ttft_s / 4.0]
    slowed += [request.ttft_s / 0.2 for request in done.requests[1:]]
    print(f"{strategy}: times as long as alone: {slowed[0]:.2f}, others {max(slowed[1:]):.2f}")
    assert slowed[0] <= 2.2
    assert max(slowed) <= 5


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_stages", [2, 4])
@pytest.mark.parametrize("tokens", [6000, 20_000, 65_536])
def test_prompts_of_one_length_are_done_one_after_the_other(
    strategy: ChunkStrategyName, num_stages: int, tokens: int
) -> None:
    """Taking turns would end all of them last; the next begins where room is left."""
    latency = h200_pipeline(num_stages)
    config = dataclasses.replace(CONFIG, chunk_strategy=strategy, chunked_prefill_tokens=4096)
    prompts = [arrival(f"r{i}", tokens) for i in range(8)]
    done = simulate(prompts, latency, config=config, known=latency)
    ends_s = [request.ttft_s for request in done.requests]
    assert ends_s == sorted(ends_s)
    shares = [end_s / ends_s[-1] for end_s in ends_s]
    assert all(share < (index + 2.5) / 8 for index, share in enumerate(shares))


def test_chunks_of_good_sizes_leave_nobody_waiting() -> None:
    """They are meant to be below the slot, which is the longest chunk's: others do not fill it up.

    Else the first of four prompts would end when more than half of all is done.
    """
    latency = h200_pipeline(4)
    config = dataclasses.replace(CONFIG, chunk_strategy="optimal", chunked_prefill_tokens=16_384)
    prompts = [arrival(f"r{i}", 131_072) for i in range(4)]
    done = simulate(prompts, latency, config=config, known=latency)
    shares = [request.ttft_s / done.end_s for request in done.requests]
    assert [pytest.approx(share, abs=0.02) for share in (0.25, 0.5, 0.75, 1.0)] == shares


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_higher_priority_passes_in_prefill(strategy: ChunkStrategyName) -> None:
    """Also a longer one, that would wait by its length; the lower one goes on behind it."""
    config = dataclasses.replace(_SMALL, chunk_strategy=strategy)
    low, high = arrival("low", 100 * 64), arrival("high", 50 * 64, at_s=0.2, priority=5)
    done = simulate([low, high], _TEN_MS, config=config, known=_TEN_MS)
    assert done.requests[1].ttft_s < 0.5 + 0.06
    assert done.requests[0].ttft_s < 1.5 + 0.06


@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, 1.5), (2.0, 0.3)])
def test_a_wrong_model_is_put_right(factors: tuple[float, float]) -> None:
    """Stages that take other than was measured: hardly later than if all had been known."""
    known = h200_pipeline(4)
    slow, fast = (_times(known.stages[0], factor) for factor in factors)
    true = PipelineLatency((slow, slow, fast, fast))
    prompts = [arrival(f"r{i}", 65_536) for i in range(16)]
    informed = simulate(prompts, true, known=true)
    misled = simulate(prompts, true, known=known)
    assert misled.end_s <= 1.03 * informed.end_s


def _times(stage: StageLatency, factor: float) -> StageLatency:
    """Return a stage whose every term is another."""
    terms = {name: factor * getattr(stage, name) for name in ("floor_ms", *TERMS, "edge_ms")}
    return dataclasses.replace(stage, **terms)


@pytest.mark.parametrize("tokens", [300, 2000, 6000, 20_000, 131_072])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_time_left_is_about_true(tokens: int, num_stages: int) -> None:
    """Progress tells what is left at the first chunk within a tenth, and nothing at the end."""
    latency = h200_pipeline(num_stages)
    told = watch([arrival("a", tokens)], latency)
    (first_s, first), (last_s, last) = told[0], told[-1]
    assert pytest.approx(last_s - first_s, rel=0.1, abs=0.002) == first.eta_s
    assert (last.eta_s, last.processed) == (0.0, tokens)
    assert last.chunk_index == last.chunks_planned == len(told)
