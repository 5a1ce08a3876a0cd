"""Chunks for stages that are far from each other, or for narrow windows: never behind a rule."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkmesh.layers import partition
from scheduler.chunk_optimal import OptimalChunks
from scheduler.engine import Engine
from scheduler.engine_config import ChunkStrategyName
from scheduler.events import RouteFormed
from scheduler.few_cells import best_of_all
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.pipeline_time import LinkTime, chunk_times_ms
from scheduler.planning.cluster import Cluster, PromptLoad
from scheduler.planning.cuts import ChunkSettings, Strategy
from scheduler.planning.latency_source import BUILT_IN, find_subject
from scheduler.planning.plan import make_plan
from scheduler.simulator import Simulator
from scheduler.window_time import windowed_finish_ms
from tests.chunk_plans import rivals
from tests.drawn_latencies import sized_stages, stages
from tests.layer_table import NUM_LAYERS, OVERHEAD_MS
from tests.model_times import CONFIG, ModelTimes, arrival, h200_pipeline

_SIZES = (64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 16_384)


def _finish_ms(chunks: OptimalChunks, prompts: Sequence[Sequence[int]]) -> float:
    """Follow each chunk of prompts in a row."""
    starts = np.concatenate([np.array([0, *ends[:-1]], dtype=np.float64) for ends in prompts])
    stops = np.concatenate([np.array(ends, dtype=np.float64) for ends in prompts])
    times_ms = chunk_times_ms(chunks.latency, starts, stops)
    window = chunks.window or len(starts)
    tokens = stops - starts
    return float(windowed_finish_ms(times_ms, tokens, chunks.link, window=window)[-1, -1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(stages(), sized_stages()), min_size=1, max_size=4),
    st.integers(1, 2),
    st.floats(0, 50),
    st.integers(1, 10),
    st.integers(1, 20_000),
    st.integers(1, 3),
)
def test_never_behind_fixed_or_dynamic(
    drawn: list[StageLatency],
    times: int,
    latency_ms: float,
    window: int,
    tokens: int,
    repeats: int,
) -> None:
    """Unequal stages, links of up to 50 ms, windows of 1 to 10, prompts in a row."""
    chunks = OptimalChunks(
        latency=PipelineLatency(tuple(drawn) * times),
        page_tokens=64,
        link=LinkTime(latency_ms=latency_ms),
        window=window,
    )
    plan = chunks.cut_all([(0, tokens)] * repeats)
    assert pytest.approx(plan.finish_ms) == _finish_ms(chunks, plan.ends)
    for name, ends in rivals(chunks.latency, 0, tokens, _SIZES, 64):
        rival_ms = _finish_ms(chunks, [ends] * repeats)
        assert plan.finish_ms <= rival_ms * (1 + 1e-9), name


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(stages(), sized_stages()), min_size=1, max_size=3),
    st.floats(0, 50),
    st.integers(1, 5),
    st.sampled_from([0, 16, 64]),
    st.integers(1, 64 * 6),
)
def test_of_few_cells_none_is_better(
    drawn: list[StageLatency], latency_ms: float, window: int, start: int, tokens: int
) -> None:
    """As if all plans were followed one by one."""
    chunks = OptimalChunks(
        latency=PipelineLatency(tuple(drawn)),
        page_tokens=64,
        link=LinkTime(latency_ms=latency_ms, ms_per_token=1e-3),
        window=window,
    )
    end = start + tokens
    inner = range((start // 64 + 1) * 64, end, 64)
    least_ms = min(
        chunks.pipeline.finish_ms(borders[:-1], borders[1:])
        for count in range(len(inner) + 1)
        for cuts in itertools.combinations(inner, count)
        for borders in [np.array([start, *cuts, end], dtype=np.float64)]
    )
    plan = best_of_all(chunks.pipeline, chunks.reach, (start, end), float("inf"))
    assert pytest.approx(least_ms, rel=1e-9) == plan.finish_ms


@pytest.mark.parametrize(
    ("num_stages", "latency_ms", "tokens", "num_requests"),
    [(4, 20.0, 32_768, 1), (4, 50.0, 32_768, 1), (8, 10.0, 131_072, 8), (6, 0.1, 131_072, 1)],
)
def test_far_stages_get_longer_chunks(
    num_stages: int, latency_ms: float, tokens: int, num_requests: int
) -> None:
    """Chunks for a near pipeline took up to 2.3 times as long as fixed ones of 4096."""
    latency = find_subject(None, BUILT_IN).latency.with_overhead(OVERHEAD_MS)
    link = LinkTime.of_bandwidth(latency_ms=latency_ms, bytes_per_token=8192, bytes_per_s=50e9)
    cluster = Cluster.of(latency, partition(NUM_LAYERS, num_stages), link)
    load = PromptLoad(prompt_tokens=tokens, num_requests=num_requests)
    own = ChunkSettings(page_tokens=64, chunked_prefill_tokens=4096, smooth_factor=0.75)
    finish_ms = {
        strategy: make_plan(strategy, cluster, load, own, simulate=False).finish_ms
        for strategy in Strategy
    }
    assert finish_ms[Strategy.OPTIMAL] <= 1.0005 * min(finish_ms.values())


@pytest.mark.parametrize(("latency_ms", "prompt"), [(20.0, 32_768), (50.0, 32_768), (20.0, 4000)])
def test_the_live_engine_looks_at_its_links(latency_ms: float, prompt: int) -> None:
    """Long prompts are searched for, of short ones some numbers of chunks are tried."""
    latency = h200_pipeline(4)
    finish_s = {}
    tried: list[tuple[ChunkStrategyName, int]] = [("optimal", 8192)]
    tried += [("fixed", 1024 << step) for step in range(4)]
    for strategy, size in tried:
        config = dataclasses.replace(
            CONFIG, chunk_strategy=strategy, chunked_prefill_tokens=size, max_chunk_ms=None
        )
        route = RouteFormed(
            epoch=1,
            num_stages=4,
            num_pages=1024,
            latency=latency,
            link=LinkTime(latency_ms=latency_ms),
        )
        simulator = Simulator(
            Engine(config), route, ModelTimes(latency), link_latency_s=latency_ms / 1000
        )
        finish_s[strategy, size] = simulator.run([arrival("r", prompt)]).requests[0].ttft_s
    assert finish_s["optimal", 8192] <= 1.001 * min(finish_s.values())
