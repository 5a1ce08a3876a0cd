"""Microbatches of one slot's time: what fits, where chunks end, and when a slot is found anew."""

from __future__ import annotations

import statistics
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.chunk_optimal import OptimalChunks
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.part import Part, work_of
from scheduler.prefill import Prefill
from scheduler.request import Request, RequestState
from scheduler.slot_budget import SlotBudget
from tests.model_times import h200_pipeline
from tests.specs import make_spec

_LATENCY = PipelineLatency(
    (StageLatency(floor_ms=2.0, fixed_ms=1.0, ms_per_token=0.01, ms_per_row=0.1),) * 2
)


def _budget(
    latency: PipelineLatency = _LATENCY, *, max_chunk_ms: float | None = None, tokens: int = 4096
) -> SlotBudget:
    """Return a budget of pages of 64."""
    optimal = OptimalChunks(
        latency=latency, page_tokens=64, max_chunk_tokens=tokens, max_chunk_ms=max_chunk_ms
    )
    return SlotBudget(optimal, tokens)


def _request(budget: SlotBudget, arrival: int, prompt: int, *, start: int = 0) -> Request:
    """Return an admitted prompt."""
    prefill = Prefill(start=start, end=prompt)
    budget.begin(prefill)
    return Request(
        spec=make_spec(f"r{arrival}", prompt, page_tokens=1 << 22),
        arrival=arrival,
        state=RequestState.PREFILL,
        row=arrival,
        last_prefill=prefill,
    )


def _fill(
    budget: SlotBudget, requests: list[Request], *, num_rows: int = 0, is_awaited: bool = False
) -> list[Part]:
    """Fill a microbatch with those that have chunks left; none if nobody has."""
    left = [request for request in requests if not request.prefill.is_sent]
    if not left:
        return []
    return budget.fill(left, beside=_rows(num_rows), most=99, is_awaited=is_awaited or num_rows > 0)


def _rows(num_rows: int) -> Work:
    """Return decode rows of 100 tokens."""
    return Work.of_rows([100] * num_rows)


def _drain(
    budget: SlotBudget, requests: list[Request], *, num_rows: int = 0, is_awaited: bool = False
) -> list[list[Part]]:
    """Fill microbatches until nothing is left."""
    filled = []
    while parts := _fill(budget, requests, num_rows=num_rows, is_awaited=is_awaited):
        filled.append(parts)
    return filled


def test_a_prompt_alone_is_cut_in_equal_times() -> None:
    """6 of 11 cells at most take 46.96 + 8.04 ms; 7 of 10 cells, as equal chunks have it, 55.36."""
    budget = _budget()
    request = _request(budget, 0, 4096)
    first = _fill(budget, [request])
    assert budget.slot_ms == pytest.approx(8.04)
    sizes = [part.end - part.start for (part,) in [first, *_drain(budget, [request])]]
    assert sum(sizes) == 4096
    assert max(sizes) - min(sizes) <= 64
    assert len(sizes) == 6


def test_decode_rows_shorten_a_chunk() -> None:
    """The whole stays within the slot, and the border on a cell."""
    budget = _budget()
    request = _request(budget, 0, 4096)
    (part,) = _fill(budget, [request], num_rows=20)
    assert budget.slot_ms == pytest.approx(7.4)
    assert part.end == 384
    assert _LATENCY.microbatch_ms(work_of([part]) + _rows(20)) <= budget.slot_ms


def test_many_rows_leave_half_of_a_longer_slot() -> None:
    """A prompt must not creep because many decode; how long they wait is bounded by the cap."""
    budget = _budget()
    (part,) = _fill(budget, [_request(budget, 0, 4096)], num_rows=80)
    assert budget.slot_ms == pytest.approx(16.0)
    assert part.end == 576


def test_never_less_than_a_cell() -> None:
    """Rows that take all that the cap allows must not keep a prompt waiting for ever."""
    budget = _budget(max_chunk_ms=5.0)
    (part,) = _fill(budget, [_request(budget, 0, 4096)], num_rows=1000)
    assert (part.start, part.end) == (0, 64)


def test_no_slivers_beside_rows() -> None:
    """The last two are made alike, and less than a cell is taken along."""
    for tokens in range(5000, 9000, 137):
        budget = _budget()
        requests = [_request(budget, 0, tokens)]
        filled = _drain(budget, requests, num_rows=15)
        sizes = [part.end - part.start for (part,) in filled]
        assert sum(sizes) == tokens
        assert min(sizes) > 64
        assert sizes[-1] >= sizes[-2] / 2 - 64


def test_short_prompt_rides_with_a_long_one() -> None:
    """In the next microbatch, whole, and the long one's chunk gives way."""
    budget = _budget()
    long, short = _request(budget, 0, 8192), _request(budget, 1, 100)
    first, second = _fill(budget, [long]), _fill(budget, [long, short])
    assert [part.request for part in first] == [long]
    assert [part.request for part in second] == [short, long]
    assert second[0].end == 100
    assert _LATENCY.microbatch_ms(work_of(second)) <= budget.slot_ms


def test_no_mere_piece_of_a_long_prompt_behind_another() -> None:
    """A quarter of a slot is the least: smaller pieces only make more chunks of it."""
    budget = _budget()
    first, second = _request(budget, 0, 4096), _request(budget, 1, 4096)
    for parts in _drain(budget, [first, second]):
        assert all(
            part.end - part.start >= 128 or part.request.prefill.end == part.end for part in parts
        )


def test_many_short_prompts_share_what_each_microbatch_pays() -> None:
    """Of work that is all short, the slot is that of one long prompt."""
    budget = _budget()
    filled = _drain(budget, [_request(budget, index, 50) for index in range(100)])
    assert 5 <= len(filled) <= 20


def _longest_ms(filled: list[list[Part]]) -> float:
    """Return the time of the longest microbatch."""
    return max(_LATENCY.microbatch_ms(work_of(parts)) for parts in filled)


def test_cap_of_a_chunks_time_holds() -> None:
    """Those who decode wait for it, also where their rows are in other microbatches."""
    budget = _budget(max_chunk_ms=4.0)
    requests = [_request(budget, 0, 100_000), _request(budget, 1, 3000)]
    assert _longest_ms(_drain(budget, requests, is_awaited=True)) <= 4.0


def test_nobody_pays_for_a_cap_that_nobody_needs() -> None:
    """A prompt that is alone, and waited for by none who decodes, is cut as if there were no cap.

    On a slow machine the cap would hold a few cells, and each chunk pays anew.
    """
    capped, free = _budget(max_chunk_ms=4.0), _budget()
    alone = [_drain(budget, [_request(budget, 0, 100_000)]) for budget in (capped, free)]
    ends = [[part.end for (part,) in filled] for filled in alone]
    assert ends[1] == ends[0]
    assert _longest_ms(alone[0]) > 2 * 4.0


def test_cap_holds_as_soon_as_somebody_waits() -> None:
    """Whoever comes to decode or prefill beside a long prompt; once they are gone it is free."""
    budget = _budget(max_chunk_ms=4.0)
    long, short = _request(budget, 0, 100_000), _request(budget, 1, 3000)
    alone = _fill(budget, [long])
    awaited = _fill(budget, [long], is_awaited=True)
    beside = _fill(budget, [long, short])
    again = _fill(budget, [long])
    assert _longest_ms([awaited, beside]) <= 4.0 < _longest_ms([alone])
    assert _longest_ms([again]) == pytest.approx(_longest_ms([alone]), rel=0.15)


def test_one_stage_fills_its_buffers() -> None:
    """Nothing is gained by shorter chunks where there is no pipeline."""
    budget = _budget(PipelineLatency(_LATENCY.stages[:1]), tokens=1024)
    sizes = [part.end - part.start for (part,) in _drain(budget, [_request(budget, 0, 4096)])]
    assert sizes == [1024] * 4


def test_refit_changes_the_slot_of_what_is_left() -> None:
    """A stage that pays four times as much for each microbatch wants longer chunks."""
    budget = _budget()
    request = _request(budget, 0, 8192)
    (before,) = _fill(budget, [request])
    slot_ms = budget.slot_ms
    stage = StageLatency(floor_ms=2.0, fixed_ms=4.0, ms_per_token=0.01, ms_per_row=0.1)
    budget.replace(PipelineLatency((stage,) * 2))
    (after,) = _fill(budget, [request])
    assert budget.slot_ms > 1.5 * slot_ms
    assert after.end - after.start > 1.5 * (before.end - before.start)
    assert request.prefill.borders[0] == before.end


def test_who_leaves_takes_its_slot_along() -> None:
    """A prompt beside a far longer one was cut for both; alone it is through sooner."""
    latency = h200_pipeline(4)
    budget = _budget(latency, tokens=8192)
    long, short = _request(budget, 0, 1 << 20), _request(budget, 1, 16_384)
    _fill(budget, [long, short])
    with_both_ms = budget.slot_ms
    budget.leave(long)
    _fill(budget, [short])
    assert budget.slot_ms < with_both_ms / 4


def test_million_tokens_are_searched_once_and_soon() -> None:
    """Not for each microbatch, nor for each short prompt that comes, and in 50 ms by itself."""
    searches_s = []
    for _ in range(3):
        budget = _budget(h200_pipeline(4), tokens=8192)
        long = _request(budget, 0, 1 << 20)
        begin = time.process_time()
        _fill(budget, [long])
        searches_s.append(time.process_time() - begin)
    borders = long.prefill.borders
    rest_s = []
    for index in range(50):
        begin = time.process_time()
        _fill(budget, [long, _request(budget, index + 1, 100)])
        rest_s.append(time.process_time() - begin)
    assert long.prefill.borders is borders
    assert min(searches_s) < 0.15
    assert statistics.median(rest_s) < min(searches_s) / 5


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3000)), min_size=1, max_size=8),
    rows=st.integers(0, 60),
    num_stages=st.integers(1, 4),
    cap_ms=st.sampled_from([None, 3.0, 20.0]),
)
def test_every_token_once_within_the_slot(
    prompts: list[tuple[int, int]], rows: int, num_stages: int, cap_ms: float | None
) -> None:
    """Whatever is admitted: aligned borders, no microbatch beyond slot and buffers, all ends."""
    latency = PipelineLatency(_LATENCY.stages[:1] * num_stages)
    budget = _budget(latency, max_chunk_ms=cap_ms, tokens=1024)
    requests = [
        _request(budget, index, 64 * pages + tokens, start=64 * pages)
        for index, (pages, tokens) in enumerate(prompts)
    ]
    covered = {request: request.prefill.start for request in requests}
    while parts := _fill(budget, requests, num_rows=rows):
        for part in parts:
            assert covered[part.request] == part.start < part.end
            covered[part.request] = part.end
            assert part.end % 64 == 0 or part.end == part.request.prefill.end
        assert sum(part.end - part.start for part in parts) <= 1024
        first, ms = parts[0], latency.microbatch_ms(work_of(parts) + _rows(rows))
        is_one_cell = len(parts) == 1 and first.end - first.start <= 128
        assert ms <= budget.slot_ms + 64 * 0.01 or is_one_cell
    assert all(covered[request] == request.prefill.end for request in requests)
