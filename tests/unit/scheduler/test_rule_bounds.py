"""Bounds of plans by rules: none is above what the plan takes, or a better one would be missed."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.chunk_dynamic import DynamicChunks
from scheduler.chunking import FixedChunks
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.least_ratios import LeastRatios
from scheduler.rule_bounds import RuleBounds
from scheduler.size_ratios import SizeRatios
from scheduler.windowed_pipeline import WindowedPipeline
from tests.chunk_plans import finish_ms
from tests.drawn_latencies import sized_stages, stages

_STAGES = st.lists(st.one_of(stages(), sized_stages()), min_size=1, max_size=4)
_SPANS = st.tuples(st.sampled_from([0, 64, 8192, 500_032]), st.integers(1, 60_000))
_FACTORS = (0.5, 0.75, 1.0)


def _bounds(
    drawn: list[StageLatency], span: tuple[int, int], repeats: int
) -> tuple[PipelineLatency, RuleBounds]:
    latency = PipelineLatency((*drawn, drawn[0]))
    pipeline = WindowedPipeline(latency=latency)
    return latency, RuleBounds(pipeline, (span[0], sum(span)), 64, repeats)


@settings(max_examples=150, deadline=None)
@given(_STAGES, _SPANS, st.integers(1, 1000), st.integers(1, 3))
def test_fixed_sizes(
    drawn: list[StageLatency], span: tuple[int, int], cells: int, repeats: int
) -> None:
    """Whole cells, up to more than the prompt holds."""
    latency, bounds = _bounds(drawn, span, repeats)
    (least_ms,) = bounds.fixed_ms(np.array([64.0 * cells]))
    ends = FixedChunks(64 * cells).cut(span[0], sum(span))
    assert least_ms <= finish_ms(latency, span[0], ends, repeats) * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(_STAGES, _SPANS, st.integers(1, 200), st.integers(1, 3))
def test_the_dynamic_rule(
    drawn: list[StageLatency], span: tuple[int, int], cells: int, repeats: int
) -> None:
    """For each factor, behind a hit as well, where the first chunk is the longest."""
    latency, bounds = _bounds(drawn, span, repeats)
    rule = DynamicChunks.of_pipeline(
        latency, chunk_tokens=64 * cells, page_tokens=64, smooth_factor=1.0, context_tokens=None
    )
    (first_ms,) = bounds.first_ms(np.array([64.0 * cells]))
    (leasts_ms,) = bounds.dynamic_ms([rule], _FACTORS)
    for factor, least_ms in zip(_FACTORS, leasts_ms, strict=True):
        ends = dataclasses.replace(rule, smooth_factor=factor).cut(span[0], sum(span))
        took_ms = finish_ms(latency, span[0], ends, repeats)
        assert max(first_ms, least_ms) <= took_ms * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(stages(), st.integers(1, 200), st.floats(0, 1), st.integers(0, 100_000))
def test_sizes_at_once_are_those_of_the_rule(
    stage: StageLatency, cells: int, factor: float, done: int
) -> None:
    """The rule stands twice in the code, for one chunk and for all borders."""
    rule = DynamicChunks(
        chunk_tokens=64 * cells,
        ms_per_token=stage.ms_per_token,
        ms_per_pair=stage.ms_per_pair,
        page_tokens=64,
        smooth_factor=factor,
    )
    one = rule.next_tokens(done) or rule.chunk_tokens
    assert [one] == rule.sizes_behind(np.array([float(done)]), factor).tolist()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.8, 1.25), min_size=1, max_size=6), st.integers(1, 300), st.integers(0, 300)
)
def test_least_ratio_between_two_sizes(drawn: list[float], low: int, more: int) -> None:
    """As if all were looked at one by one."""
    ratios = SizeRatios(
        tokens=tuple(100 << step for step in range(len(drawn))), ratios=tuple(drawn)
    )
    least = LeastRatios(ratios, 64, 40_000)
    expected = min(ratios.at(64 * cells) for cells in range(low, low + more + 1))
    found = least.between(np.array([64.0 * low]), np.array([64.0 * (low + more)]))
    assert abs(expected - float(found[0])) < 1e-12
