"""Walks over a prompt's borders: looked up or step by step, they end up at the same ones."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.border_walk import Steps, walk_back, walk_on
from scheduler.chunk_reach import ChunkReach
from scheduler.latency_model import PipelineLatency, StageLatency
from tests.drawn_latencies import stages

_FLAT = StageLatency(ms_per_token=1.0, edge_ms=1.0)
_GROWING = (
    StageLatency(ms_per_token=0.1, edge_ms=1.0),
    StageLatency(ms_per_token=0.1, ms_per_pair=0.0001, edge_ms=1.0),
)
_SPANS = st.tuples(st.sampled_from([0, 16, 100, 8192, 500_000]), st.integers(1, 100_000))
_MAX_TOKENS = st.sampled_from([None, 64, 2048])


def _reach(two: tuple[StageLatency, ...], max_tokens: int | None) -> ChunkReach:
    return ChunkReach(PipelineLatency(two), align_tokens=64, max_chunk_tokens=max_tokens)


def _cap_ms(reach: ChunkReach, end: int, cells: int) -> float:
    """Return what holds so many cells before an end."""
    return reach.chunk_ms(max(end - 64 * cells, 0), end)


@settings(max_examples=150, deadline=None)
@given(st.tuples(stages(), stages()), _SPANS, st.integers(1, 60), _MAX_TOKENS)
@example((_FLAT, _FLAT), (0, 100_000), 2, None)
@example((StageLatency(edge_ms=1.0),) * 2, (16, 100_000), 2, 64)
@example(_GROWING, (100, 1117), 1, None)
def test_back_from_the_end(
    two: tuple[StageLatency, ...], span: tuple[int, int], cells: int, max_tokens: int | None
) -> None:
    """Each chunk begins where earliest_start says."""
    reach = _reach(two, max_tokens)
    start, end = span[0], sum(span)
    cap_ms = _cap_ms(reach, end, cells)
    ends = walk_back(reach, (start, end), cap_ms)
    begins = [*ends[1:], start]
    assert end == ends[0]
    assert [reach.earliest_start(start, stop, cap_ms) for stop in ends] == begins


@settings(max_examples=150, deadline=None)
@given(st.tuples(stages(), stages()), _SPANS, st.integers(1, 60), st.integers(1, 30), _MAX_TOKENS)
@example((_FLAT, _FLAT), (0, 100_000), 2, 1, None)
def test_on_from_the_start(
    two: tuple[StageLatency, ...],
    span: tuple[int, int],
    cells: int,
    least_cells: int,
    max_tokens: int | None,
) -> None:
    """Each chunk ends where latest_end says, until that is too near."""
    reach = _reach(two, max_tokens)
    start, end = span[0], sum(span)
    cap_ms = _cap_ms(reach, end, cells)
    borders = walk_on(reach, (start, end), cap_ms, 64 * least_cells)
    for before, border in itertools.pairwise(borders):
        assert min(reach.latest_end(before, cap_ms), end) == border
        assert reach.latest_end(before, cap_ms) >= before + 64 * least_cells
    if borders[-1] < end:
        assert reach.latest_end(borders[-1], cap_ms) < borders[-1] + 64 * least_cells


@settings(max_examples=100, deadline=None)
@given(st.tuples(stages(), stages()), _SPANS, st.integers(1, 60), st.integers(0, 2000))
def test_from_any_border(
    two: tuple[StageLatency, ...], span: tuple[int, int], cells: int, num_steps: int
) -> None:
    """Whether steps are few or many, and from a start that is not aligned, too."""
    reach = _reach(two, None)
    start, end = span[0], sum(span)
    cap_ms = _cap_ms(reach, end, cells)
    steps = Steps(reach, (start, end), cap_ms, num_steps)
    for border in (start, *range(-(-start // 64) * 64, end, 640)):
        assert reach.latest_end(border, cap_ms) == steps.latest_end(border)
