"""Chunks with which a pipeline is done soonest: against all plans there are, and by property."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.pipeline_time import LinkTime
from scheduler.size_ratios import SizeRatios
from tests.bench.planning_time import LIMIT_MS, least_ms, pipeline
from tests.chunk_plans import finish_ms, least_finish_ms, rivals, sizes
from tests.drawn_latencies import sized_stages, stages
from tests.layer_table import NUM_LAYERS, OVERHEAD_MS

_LAYER = StageLatency(floor_ms=0.6892, ms_per_token=6.3356e-4, ms_per_pair=1.33311e-8)
"""Fit of the measured layer."""


def _even(num_stages: int) -> PipelineLatency:
    stage = _LAYER.of_layers(NUM_LAYERS // num_stages).with_overhead(OVERHEAD_MS)
    return PipelineLatency((stage,) * num_stages)


def _uneven(num_stages: int, head_ms: float = 0.0) -> PipelineLatency:
    """The remainder of the layers at the later stages, perhaps a head on the last."""
    short, num_long = divmod(NUM_LAYERS, num_stages)
    layers = [short] * (num_stages - num_long) + [short + 1] * num_long
    stages = [_LAYER.of_layers(num).with_overhead(OVERHEAD_MS) for num in layers]
    return PipelineLatency((*stages[:-1], stages[-1].with_overhead(head_ms)))


_STARTS = st.sampled_from([0, 0, 16, 64, 100, 8192, 500_000])


@settings(max_examples=150, deadline=None)
@given(stages(), st.integers(1, 16), _STARTS, st.integers(1, 64 * 8))
@example(StageLatency(fixed_ms=0.25, ms_per_token=1e-4), 1, 16, 137)
@example(
    StageLatency(fixed_ms=10.0, ms_per_prefix_token=1.0, ms_per_token=1.0, ms_per_pair=1e-5),
    1,
    0,
    124,
)
def test_no_plan_of_few_cells_is_better(
    stage: StageLatency, num_stages: int, start: int, tokens: int
) -> None:
    """On equal stages the plan is the best of all with its borders, floor and prefix included."""
    latency = PipelineLatency((stage,) * num_stages)
    plan = OptimalChunks(latency=latency, page_tokens=64).cut_all([(start, start + tokens)])
    best_ms = least_finish_ms(latency, start, start + tokens, 64)
    assert pytest.approx(best_ms, rel=1e-9) == plan.finish_ms
    assert pytest.approx(plan.finish_ms) == finish_ms(latency, start, plan.ends[0])


@settings(max_examples=60, deadline=None)
@given(
    stages(), st.integers(1, 16), _STARTS, st.integers(1, 40_000), st.sampled_from([16, 48, 128])
)
@example(StageLatency(ms_per_token=1.0, ms_per_pair=1e-4, edge_ms=0.1), 2, 0, 9131, 16)
def test_covers_the_prompt_at_aligned_borders(
    stage: StageLatency, num_stages: int, start: int, tokens: int, page_tokens: int
) -> None:
    """Every token once, no empty chunk, borders on pages and on 64, whatever the model."""
    latency = PipelineLatency((stage,) * num_stages)
    end = start + tokens
    ends = OptimalChunks(latency=latency, page_tokens=page_tokens).cut(start, end)
    assert end == ends[-1]
    assert min(sizes(start, ends)) > 0
    align = {16: 64, 48: 192, 128: 128}[page_tokens]
    assert all(border % align == 0 for border in ends[:-1])


@settings(max_examples=60, deadline=None)
@given(stages(), st.integers(1, 16), _STARTS, st.integers(1, 40_000))
def test_never_behind_fixed_or_dynamic(
    stage: StageLatency, num_stages: int, start: int, tokens: int
) -> None:
    """In the model it plans with, no hand-tuned size is faster."""
    latency = PipelineLatency((stage,) * num_stages)
    end = start + tokens
    plan = OptimalChunks(latency=latency, page_tokens=64).cut_all([(start, end)])
    for name, ends in rivals(latency, start // 64 * 64, end, (64, 512, 1024, 4096, 16384), 64):
        own = [border for border in ends if border > start]
        assert plan.finish_ms <= finish_ms(latency, start, own) * (1 + 1e-9), name


@settings(max_examples=60, deadline=None)
@given(sized_stages(), st.integers(1, 16), _STARTS, st.integers(1, 100_000))
@example(
    StageLatency(
        ms_per_prefix_token=1.0,
        ms_per_token=1.0,
        edge_ms=1.0,
        size_ratios=SizeRatios(tokens=(64, 128), ratios=(1.09375, 1.0)),
    ),
    12,
    16,
    608,
)
def test_never_behind_fixed_or_dynamic_where_sizes_differ(
    stage: StageLatency, num_stages: int, start: int, tokens: int
) -> None:
    """The same with ratios of sizes, which make some good that nobody would search for.

    Behind a hit that ends between two borders rules are out of step with the plan, and not tried.
    """
    latency = PipelineLatency((stage,) * num_stages)
    end = start + tokens
    plan = OptimalChunks(latency=latency, page_tokens=64).cut_all([(start, end)])
    assert pytest.approx(plan.finish_ms) == finish_ms(latency, start, plan.ends[0])
    assert stage.size_ratios is not None
    known = [max(round(size / 64), 1) * 64 for size in stage.size_ratios.tokens]
    for name, ends in rivals(latency, start // 64 * 64, end, (*known, 4096, 16384), 64):
        own = [border for border in ends if border > start]
        slack = 1e-9 if start % 64 == 0 else 0.02
        assert plan.finish_ms <= finish_ms(latency, start, own) * (1 + slack), name


@settings(max_examples=60, deadline=None)
@given(
    sized_stages(), st.integers(1, 16), _STARTS, st.integers(1, 40_000), st.integers(1, 5),
    st.floats(0, 3),
)  # fmt: skip
def test_promises_hold_where_sizes_differ(
    stage: StageLatency, num_stages: int, start: int, tokens: int, repeats: int, limit: float
) -> None:
    """Every token once, borders on pages, and no chunk longer than those that wait were told."""
    latency = PipelineLatency((stage, *(stage.with_overhead(0.1),) * num_stages))
    end = start + tokens
    limit_ms = stage.at_any_size().chunk_ms(end - min(64, tokens), end) * (1.2 + limit)
    strategy = OptimalChunks(
        latency=latency, page_tokens=16, max_chunk_tokens=2048, max_chunk_ms=limit_ms + 0.1
    )
    plan = strategy.cut_all([(start, end)] * repeats)
    for ends in plan.ends:
        assert end == ends[-1]
        assert 0 < min(sizes(start, ends)) <= max(sizes(start, ends)) <= 2048
        assert all(border % 64 == 0 for border in ends[:-1])
        times_ms = [latency.chunk_ms(*span) for span in itertools.pairwise((start, *ends))]
        assert max(times_ms) <= plan.slot_ms * (1 + 1e-9)
    assert plan.slot_ms <= (limit_ms + 0.1) * (1 + 1e-9)


@pytest.mark.parametrize("tokens", [1000, 6000, 32_768, 131_072, 1_048_576])
@pytest.mark.parametrize("num_stages", [2, 4, 8])
@pytest.mark.parametrize("repeats", [1, 16])
def test_never_behind_on_the_measured_layer(tokens: int, num_stages: int, repeats: int) -> None:
    """Stages of Qwen3-8B, 36 layers over 8 of them unevenly; one prompt and 16 in a row."""
    latency = _uneven(num_stages) if num_stages == 8 else _even(num_stages)
    plan = OptimalChunks(latency=latency, page_tokens=128).cut_all([(0, tokens)] * repeats)
    grid = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
    for name, ends in rivals(latency, 0, tokens, grid, 128):
        assert plan.finish_ms <= finish_ms(latency, 0, ends, repeats), name


@pytest.mark.parametrize("tokens", [8192, 131_072])
@pytest.mark.parametrize("num_stages", [4, 8])
@pytest.mark.parametrize("head_ms", [0.1, 0.3, 1.0, 5.0])
def test_hardly_behind_with_a_head(tokens: int, num_stages: int, head_ms: float) -> None:
    """A last stage that pays more for each chunk makes equal times not the best there is."""
    latency = _uneven(num_stages, head_ms)
    plan = OptimalChunks(latency=latency, page_tokens=128).cut_all([(0, tokens)])
    for name, ends in rivals(latency, 0, tokens, (512, 1024, 1536, 2048, 3072, 4096, 8192), 128):
        assert plan.finish_ms <= finish_ms(latency, 0, ends) * 1.005, name


@pytest.mark.parametrize(
    ("repeats", "efficiency"), [(1, 0.92), (16, 0.97)], ids=["one prompt", "16 in a row"]
)
def test_four_stages_reach_most_of_four_times(repeats: int, efficiency: float) -> None:
    """128K tokens against the best there is on one stage: all in one chunk."""
    plan = OptimalChunks(latency=_even(4), page_tokens=128).cut_all([(0, 131_072)] * repeats)
    single_ms = _even(1).chunk_ms(0, 131_072) * repeats
    assert single_ms / 4 / plan.finish_ms >= efficiency


@pytest.mark.parametrize("tokens", [2000, 4097, 32_769, 131_073, 1_048_577])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_no_short_tail(tokens: int, num_stages: int) -> None:
    """One token beyond a border does not get a slot of its own."""
    ends = OptimalChunks(latency=_even(num_stages), page_tokens=64).cut(0, tokens)
    times_ms = [_even(num_stages).chunk_ms(*span) for span in itertools.pairwise((0, *ends))]
    assert times_ms[-1] > 0.7 * max(times_ms)
    assert sizes(0, ends)[-1] >= 64 or len(ends) == 1


def test_chunks_take_equally_long() -> None:
    """Late chunks are shorter, as each of their tokens looks at more."""
    latency = _even(4)
    ends = OptimalChunks(latency=latency, page_tokens=64).cut(0, 131_072)
    times_ms = [latency.chunk_ms(*span) for span in itertools.pairwise((0, *ends))]
    assert min(times_ms) > 0.9 * max(times_ms)
    assert sizes(0, ends)[0] > 4 * sizes(0, ends)[-1]


def test_first_chunk_behind_a_hit_is_planned() -> None:
    """It takes as long as the others, and ends at an aligned border wherever the hit ended."""
    latency = _even(4)
    start = 100_016
    ends = OptimalChunks(latency=latency, page_tokens=16).cut(start, 131_072)
    times_ms = [latency.chunk_ms(*span) for span in itertools.pairwise((start, *ends))]
    assert min(times_ms) > 0.8 * max(times_ms)
    assert 0 == ends[0] % 64


def test_one_stage_has_no_bubble() -> None:
    """Then nothing is won by cutting."""
    assert (50_000,) == OptimalChunks(latency=_even(1), page_tokens=64).cut(0, 50_000)


@pytest.mark.parametrize("max_chunk_ms", [8.0, 12.0, 20.0, 1000.0])
def test_slot_limit(max_chunk_ms: float) -> None:
    """Those who decode wait no longer than they were promised."""
    latency = _even(4)
    plan = OptimalChunks(latency=latency, page_tokens=64, max_chunk_ms=max_chunk_ms).cut_all(
        [(0, 131_072)]
    )
    assert plan.slot_ms <= max_chunk_ms


def test_slot_limit_that_nothing_can_keep() -> None:
    """Behind much prefix one cell takes longer; at the floor a shorter chunk takes as long."""
    latency = _even(4)
    ends = OptimalChunks(latency=latency, page_tokens=64, max_chunk_ms=1e-3).cut(0, 20_000)
    at_floor_ms = latency.chunk_ms(0, 1)
    assert pytest.approx(at_floor_ms) == latency.chunk_ms(0, ends[0])
    far = OptimalChunks(latency=latency, page_tokens=64, max_chunk_ms=8.0)
    assert {64} == set(sizes(1_000_000, far.cut(1_000_000, 1_000_640)))


@pytest.mark.parametrize(
    ("page_tokens", "align"), [(1, 64), (16, 64), (48, 192), (5, 65), (100, 100), (1023, 1023)]
)
def test_odd_pages_keep_borders_near(page_tokens: int, align: int) -> None:
    """Multiples of 1023 and 64 are 65472 tokens apart: chunks took 2.4 times as long as fixed."""
    chunks = OptimalChunks(latency=_even(4), page_tokens=page_tokens)
    plan = chunks.cut_all([(0, 65_472)])
    assert align == chunks.fine_reach.align_tokens
    assert all(border % align == 0 for border in plan.ends[0][:-1])
    usual_ms = OptimalChunks(latency=_even(4), page_tokens=64).cut_all([(0, 65_472)]).finish_ms
    assert plan.finish_ms <= 1.02 * usual_ms


@pytest.mark.parametrize(
    ("max_chunk_tokens", "align"), [(2048, 64), (64, 64), (48, 16), (16, 16), (5, 1)]
)
def test_buffers_limit_chunks(max_chunk_tokens: int, align: int) -> None:
    """Where 64 does not fit borders are on pages, and where no page fits anywhere."""
    strategy = OptimalChunks(latency=_uneven(8), page_tokens=16, max_chunk_tokens=max_chunk_tokens)
    ends = strategy.cut(32, 3000)
    assert max(sizes(32, ends)) <= max_chunk_tokens
    assert all(border % align == 0 for border in ends[:-1])


def test_prompts_in_a_row_share_a_slot() -> None:
    """The pipeline fills and drains once for all, so that chunks may be longer than for one."""
    strategy = OptimalChunks(latency=_even(4), page_tokens=64)
    alone = strategy.cut_all([(0, 32_768)])
    row = strategy.cut_all([(0, 32_768)] * 16)
    assert row.slot_ms > 1.5 * alone.slot_ms
    assert 1 == len(set(row.ends))
    mixed = strategy.cut_all([(0, 131_072), (4096, 5000), (0, 20_000)])
    assert [131_072, 5000, 20_000] == [ends[-1] for ends in mixed.ends]
    assert 1 == len(mixed.ends[1])


def test_fast_first_stages_are_filled_with_short_chunks() -> None:
    """The slowest stage starts sooner, and is never waited for since chunks grow slowly."""
    latency = _uneven(8)
    plan = OptimalChunks(latency=latency, page_tokens=64).cut_all([(0, 131_072)])
    times_ms = [latency.chunk_ms(*span) for span in itertools.pairwise((0, *plan.ends[0]))]
    assert times_ms[0] < 0.8 * times_ms[len(times_ms) // 2]


def test_links_are_part_of_the_finish() -> None:
    """Each hop adds its latency and the last chunk's way."""
    latency = _even(4)
    far = LinkTime(latency_ms=1.0, ms_per_token=1e-4)
    without = OptimalChunks(latency=latency, page_tokens=64).cut_all([(0, 32_768)])
    with_links = OptimalChunks(latency=latency, page_tokens=64, link=far).cut_all([(0, 32_768)])
    assert 3.0 < with_links.finish_ms - without.finish_ms < 4.5


def test_model_without_any_cost_of_a_chunk() -> None:
    """Cutting seems free; the number of chunks stays bounded all the same."""
    free = PipelineLatency((StageLatency(ms_per_token=1e-3, ms_per_pair=1e-9),) * 4)
    assert len(OptimalChunks(latency=free, page_tokens=1).cut(0, 1_000_000)) < 4096
    nothing = PipelineLatency((StageLatency(),) * 4)
    assert 4096 > len(OptimalChunks(latency=nothing, page_tokens=1).cut(0, 1_000_000))


@pytest.mark.parametrize("has_sizes", [False, True])
@pytest.mark.parametrize("num_stages", [1, 4, 8])
def test_a_million_tokens_are_planned_at_once(num_stages: int, *, has_sizes: bool) -> None:
    """At most 50 ms of CPU time on an idle machine; five times that fails anywhere."""
    latency = pipeline(num_stages, is_even=False, has_sizes=has_sizes)
    assert least_ms(latency, 1 << 20) < 5 * LIMIT_MS
