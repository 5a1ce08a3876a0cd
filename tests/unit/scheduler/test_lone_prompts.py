"""A prompt that nobody is beside goes out as the search would cut it, also where none is made."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.pipeline_time import LinkTime
from scheduler.prefill import Prefill
from scheduler.request import Request, RequestState
from scheduler.slot_budget import SlotBudget
from tests.model_times import h200_pipeline
from tests.specs import make_spec

_DEMO = PipelineLatency(
    (
        StageLatency(fixed_ms=37.9, ms_per_token=1.54),
        StageLatency(fixed_ms=44.1, ms_per_token=1.11),
    )
)
"""Two stages on shared cores."""
_FAST = PipelineLatency((StageLatency(fixed_ms=1.0, ms_per_token=0.05, ms_per_pair=1e-6),) * 4)
_AT_FLOOR = PipelineLatency((StageLatency(floor_ms=2.0, fixed_ms=0.5, ms_per_token=0.02),) * 3)
_SPEC = make_spec("r", 1)


def _strategy(
    latency: PipelineLatency, max_chunk_tokens: int, *, link_latency_ms: float = 0.0
) -> OptimalChunks:
    return OptimalChunks(
        latency=latency,
        page_tokens=64,
        max_chunk_tokens=max_chunk_tokens,
        link=LinkTime(latency_ms=link_latency_ms),
        window=latency.num_stages + 1,
    )


def _sent(strategy: OptimalChunks, max_chunk_tokens: int, prompt: int) -> list[int]:
    """Return where the chunks end that the live budget sends."""
    budget = SlotBudget(strategy, max_chunk_tokens)
    prefill = Prefill(start=0, end=prompt)
    budget.begin(prefill)
    request = Request(
        spec=_SPEC, arrival=0, state=RequestState.PREFILL, row=0, last_prefill=prefill
    )
    ends: list[int] = []
    while not prefill.is_sent:
        ends += [
            part.end for part in budget.fill([request], beside=Work(), most=9, is_awaited=False)
        ]
    return ends


def _finish_ms(strategy: OptimalChunks, ends: list[int]) -> float:
    borders = np.array([0, *ends], dtype=np.float64)
    return strategy.pipeline.finish_ms(borders[:-1], borders[1:])


@pytest.mark.parametrize(
    ("latency", "max_chunk_tokens"),
    [(_DEMO, 256), (_DEMO, 4096), (_FAST, 4096), (_AT_FLOOR, 4096), (h200_pipeline(4), 8192)],
    ids=["demo", "demo with long chunks", "fast", "at the floor", "H200"],
)
@pytest.mark.parametrize("link_latency_ms", [0.0, 30.0])
def test_up_to_ten_cells_as_the_search_has_them(
    latency: PipelineLatency, max_chunk_tokens: int, link_latency_ms: float
) -> None:
    """A token more than whole cells made a chunk of its own: 442 ms instead of 398 on the demo."""
    strategy = _strategy(latency, max_chunk_tokens, link_latency_ms=link_latency_ms)
    for prompt in (*range(1, 601, 7), 63, 64, 65, 127, 129, 257, 449, 600):
        best_ms = strategy.cut_all([(0, prompt)]).finish_ms
        assert _finish_ms(strategy, _sent(strategy, max_chunk_tokens, prompt)) <= 1.001 * best_ms


@pytest.mark.parametrize(
    ("latency", "max_chunk_tokens"), [(_DEMO, 256), (_FAST, 4096), (h200_pipeline(4), 8192)]
)
def test_longer_ones_nearly_so(latency: PipelineLatency, max_chunk_tokens: int) -> None:
    """Of work that is too little for a search, some numbers of chunks are tried."""
    strategy = _strategy(latency, max_chunk_tokens)
    for prompt in range(650, 4000, 331):
        best_ms = strategy.cut_all([(0, prompt)]).finish_ms
        assert _finish_ms(strategy, _sent(strategy, max_chunk_tokens, prompt)) <= 1.03 * best_ms


@pytest.mark.parametrize(("prompt", "ends"), [(65, [65]), (129, [64, 129])])
def test_no_chunk_for_one_token(prompt: int, ends: list[int]) -> None:
    """What is left behind whole cells goes with the last of them."""
    assert ends == _sent(_strategy(_DEMO, 256), 256, prompt)


def test_other_prompts_leave_no_sliver_either() -> None:
    """Cut to a slot of one cell, a last token is taken along as far as a chunk holds it."""
    slot_ms = _DEMO.chunk_ms(0, 64)
    assert [64, 129] == list(_strategy(_DEMO, 256).cut_to(0, 129, slot_ms))
    assert [64, 128, 129] == list(_strategy(_DEMO, 64).cut_to(0, 129, slot_ms))
