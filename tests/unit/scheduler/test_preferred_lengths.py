"""Chunks of lengths that stages prefer: where they end, and when lengths are not kept."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.chunk_choice import budget_for
from scheduler.chunk_optimal import OptimalChunks, coarse_alignment
from scheduler.chunking import FixedChunks
from scheduler.events import RouteFormed
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.part import Part
from scheduler.prefill import Prefill
from scheduler.request import Request, RequestState
from scheduler.route import Route
from scheduler.slot_budget import SlotBudget
from tests.chunk_plans import finish_ms, sizes
from tests.drawn_latencies import sized_stages, stages
from tests.model_times import CONFIG, h200_pipeline
from tests.specs import make_spec

_WAVE = 512


@pytest.mark.parametrize(
    ("align_tokens", "preferred_tokens", "coarse_tokens"),
    [(128, 512, 512), (64, 512, 512), (128, 0, 128), (128, 64, 128), (128, 704, 1408),
     (128, 576, 1152), (192, 512, 384)],
)  # fmt: skip
def test_preferred_lengths_meet_pages(
    align_tokens: int, preferred_tokens: int, coarse_tokens: int
) -> None:
    """Whole pages first; twice the length is as good, and more of it is too long."""
    assert coarse_tokens == coarse_alignment(align_tokens, preferred_tokens)


def _plan(
    latency: PipelineLatency, start: int, end: int, max_chunk_tokens: int | None = None
) -> list[int]:
    chunks = OptimalChunks(
        latency=latency,
        page_tokens=128,
        preferred_tokens=_WAVE,
        max_chunk_tokens=max_chunk_tokens,
    )
    return [start, *chunks.cut(start, end)]


@pytest.mark.parametrize("num_stages", [2, 4, 8])
@pytest.mark.parametrize("tokens", [3000, 8192, 131_072, 131_073, 1_048_576])
def test_borders_are_multiples_of_a_wave(num_stages: int, tokens: int) -> None:
    """All but the last chunk fill their waves, at little cost by a model that knows of none."""
    latency = h200_pipeline(num_stages)
    borders = _plan(latency, 0, tokens)
    assert all(border % _WAVE == 0 for border in borders[:-1])
    assert tokens == borders[-1]
    free = OptimalChunks(latency=latency, page_tokens=128).cut_all([(0, tokens)])
    assert finish_ms(latency, 0, borders[1:]) <= free.finish_ms * 1.08


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(stages(), sized_stages()),
    st.integers(1, 8),
    st.sampled_from([0, 128, 512, 65_536]),
    st.integers(1, 40_000),
)
def test_never_behind_fixed_sizes_of_whole_waves(
    stage: StageLatency, num_stages: int, start: int, tokens: int
) -> None:
    """The promise holds for plans whose borders are as those of the plan must be."""
    latency = PipelineLatency((stage,) * num_stages)
    borders = _plan(latency, start, start + tokens)
    assert all(border % _WAVE == 0 for border in borders[1:-1])
    assert all(first < second for first, second in itertools.pairwise(borders))
    if start % _WAVE == 0:
        ours_ms = finish_ms(latency, start, borders[1:])
        for size in (512, 1024, 1536, 4096, 16_384):
            ends = FixedChunks(size).cut(start, start + tokens)
            assert ours_ms <= finish_ms(latency, start, ends) * (1 + 1e-9), size


def test_a_smaller_buffer_or_limit_leaves_it_to_pages() -> None:
    """Chunks that cannot be that long cannot be multiples of it."""
    latency = h200_pipeline(4)
    assert {256} == set(sizes(0, _plan(latency, 0, 8192, max_chunk_tokens=256)[1:]))
    hasty = OptimalChunks(
        latency=latency, page_tokens=128, preferred_tokens=1 << 14, max_chunk_ms=20.0
    )
    assert hasty.cut_all([(0, 131_072)]).slot_ms <= 20.0


def _request(budget: SlotBudget, prompt: int) -> Request:
    prefill = Prefill(start=0, end=prompt)
    budget.begin(prefill)
    return Request(
        spec=make_spec("r", prompt, page_tokens=1 << 22),
        arrival=0,
        state=RequestState.PREFILL,
        row=0,
        last_prefill=prefill,
    )


def _ends(num_rows: int, prompt: int) -> list[int]:
    """Fill microbatches until a prompt is sent; return where its chunks end."""
    stage = dataclasses.replace(h200_pipeline(4).stages[0], ms_per_row=0.5)
    optimal = OptimalChunks(
        latency=PipelineLatency((stage,) * 4), page_tokens=128, preferred_tokens=_WAVE
    )
    budget = SlotBudget(optimal, 8192)
    request = _request(budget, prompt)
    parts: list[Part] = []
    while not request.prefill.is_sent:
        beside = Work.of_rows([100] * num_rows)
        parts += budget.fill([request], beside=beside, most=9, is_awaited=num_rows > 0)
    return [part.end for part in parts]


def test_alone_in_microbatches_chunks_keep_their_waves() -> None:
    """Searched or not, and with no sliver at the end."""
    for prompt in (5000, 16_484, 100_010):
        ends = _ends(0, prompt)
        assert all(end % _WAVE == 0 for end in ends[:-1])
        assert sizes(0, ends)[-1] >= 128


def test_beside_rows_borders_are_fine() -> None:
    """Rows leave a little less than a planned chunk; a whole wave less would waste much of it."""
    wide, narrow = sizes(0, _ends(0, 65_536)), sizes(0, _ends(4, 65_536))
    assert len(narrow) <= 1.3 * len(wide)
    assert any(size % _WAVE for size in narrow[:-1])
    assert all(size % 128 == 0 for size in narrow[:-1])


@pytest.mark.parametrize(("told", "coarse_tokens"), [(0, 128), (512, 512)])
def test_a_route_plans_with_what_its_stages_tell(told: int, coarse_tokens: int) -> None:
    """Nothing changes where nothing is told; fixed chunks are what the user set."""
    latency = h200_pipeline(2)
    formed = RouteFormed(
        epoch=1, num_stages=2, num_pages=64, latency=latency, chunk_alignment_tokens=told
    )
    assert coarse_tokens == Route(formed, CONFIG).microbatches.chunk_alignment_tokens
    assert 0 == budget_for("fixed", CONFIG, latency, preferred_tokens=told).align_tokens
    assert 0 == budget_for("dynamic", CONFIG, latency, preferred_tokens=told).align_tokens
