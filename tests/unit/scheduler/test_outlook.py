"""How long a prompt is told to take."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from scheduler.engine_config import CHUNK_STRATEGIES, ChunkStrategyName
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.outlook import rest_ms, time_left_ms
from scheduler.prefill import Prefill
from scheduler.rows_beside import NO_ROWS, RowsBeside
from tests.model_times import CONFIG, arrival, h200_pipeline, watch

_LATENCY = PipelineLatency(
    (StageLatency(fixed_ms=2.0, ms_per_token=0.1, ms_per_row=0.5, edge_ms=1.0),) * 3
)
"""A chunk of 100 tokens takes 13 ms on each of three stages, a row half a ms more."""


def _prefill(num_chunks: int, num_sent: int, num_done: int) -> Prefill:
    """Return a prompt of chunks of 100."""
    ends = [100 * index for index in range(1, num_chunks + 1)]
    return Prefill(
        start=0, end=ends[-1], borders=(0, *ends), sent_ends=ends[:num_sent], num_done=num_done
    )


def _left_ms(own: Prefill, *others: Prefill, window: int = 4) -> float:
    """Ask."""
    others_ms = [rest_ms(other, _LATENCY) for other in others]
    return time_left_ms(own, others_ms, _LATENCY, window=window)


def test_full_pipeline_brings_a_chunk_a_slot() -> None:
    """Seven of ten are not done, three of them on their way."""
    assert pytest.approx(7 * 13) == _left_ms(_prefill(10, 6, 3))


def test_empty_pipeline_is_filled_first() -> None:
    """The next chunk has all stages before it."""
    assert pytest.approx(7 * 13 + 2 * 13) == _left_ms(_prefill(10, 3, 3))


def test_others_take_their_share() -> None:
    """A long one as much as the prompt itself, a short one no more than it has left."""
    long, short = _prefill(100, 50, 50), _prefill(3, 1, 1)
    assert pytest.approx(7 * 13 * 2 + 2 * 13) == _left_ms(_prefill(10, 6, 3), long, short)


def test_who_is_served_before_takes_all_of_its_own() -> None:
    """However little is left of the prompt itself."""
    left_ms = time_left_ms(_prefill(10, 6, 3), [], _LATENCY, window=4, ahead_ms=500)
    assert pytest.approx(500 + 7 * 13) == left_ms


def test_a_longer_last_chunk_passes_all_stages() -> None:
    """When it enters the last stages, they have waited for it: 200 tokens behind chunks of 100."""
    own = Prefill(start=0, end=500, borders=(0, 100, 200, 300, 500), sent_ends=[100], num_done=0)
    mean_ms = (3 + 10) + 3 * (3 + 400 / 3 / 10)
    assert pytest.approx(mean_ms + 2 * 10, rel=0.01) == _left_ms(own)


def test_small_window_slows_all_down() -> None:
    """One microbatch at a time passes three stages, one after the other."""
    assert pytest.approx(3 * 7 * 13) == _left_ms(_prefill(10, 4, 3), window=1)


def test_nothing_is_left_of_what_is_done() -> None:
    """Whatever others have still to do."""
    assert _left_ms(_prefill(3, 3, 3), _prefill(9, 0, 0)) == 0


def _rows(*counts: int, depth: int = 4, shorten_chunks: bool = False) -> RowsBeside:
    """Return groups of so many rows."""
    works = [Work(num_rows=count, row_tokens=100 * count) for count in counts]
    return RowsBeside.of(works, depth=depth, shorten_chunks=shorten_chunks)


def test_rows_make_microbatches_longer() -> None:
    """Three groups of 4, 4 and 6 ride in three of four microbatches: 5 rows, 2.5 ms each time."""
    rows = _rows(4, 4, 6)
    assert pytest.approx(7 * (13 + 0.75 * 2.5)) == rest_ms(_prefill(10, 6, 3), _LATENCY, rows)


def test_more_groups_than_microbatches_ride_in_all() -> None:
    """No microbatch carries two of them."""
    assert pytest.approx(7 * 14) == rest_ms(_prefill(10, 6, 3), _LATENCY, _rows(*[2] * 9))


def test_rows_make_more_chunks_where_slots_are_filled() -> None:
    """A slot of 13 ms has room for 7.5 ms of tokens beside 5 rows; what is sent is as it is."""
    rows = _rows(5, depth=1, shorten_chunks=True)
    expected = 3 * (13 + 2.5) + 4 * 13 * 10 / 7.5
    assert pytest.approx(expected) == rest_ms(_prefill(10, 6, 3), _LATENCY, rows)


def test_many_rows_leave_half_of_a_slot() -> None:
    """20 ms of rows make a slot of 40 ms, of which chunks have 20 less the 3 that each pays."""
    rows = _rows(40, depth=1, shorten_chunks=True)
    assert pytest.approx(4 * 40 * 10 / 17) == rest_ms(_prefill(4, 0, 0), _LATENCY, rows)


def test_nobody_decodes() -> None:
    """Nothing is added then."""
    assert RowsBeside.of([], depth=4, shorten_chunks=True) == NO_ROWS
    assert pytest.approx(7 * 13) == rest_ms(_prefill(10, 6, 3), _LATENCY, _rows())


@pytest.mark.parametrize("strategy", CHUNK_STRATEGIES)
@pytest.mark.parametrize("num_stages", [2, 4])
@pytest.mark.parametrize("num_rows", [0, 32])
def test_what_is_told_comes_true_all_the_way(
    strategy: ChunkStrategyName, num_stages: int, num_rows: int
) -> None:
    """A long prompt, alone or beside rows, whose chunks take longer towards its end."""
    config = dataclasses.replace(CONFIG, chunk_strategy=strategy)
    arrivals = [arrival(f"r{index}", 1000, new=300) for index in range(num_rows)]
    arrivals.append(arrival("long", 131_072, at_s=0.3))
    told = [
        (now_s, progress)
        for now_s, progress in watch(arrivals, h200_pipeline(num_stages), config=config)
        if progress.request_id == "long"
    ]
    end_s, shares = told[-1][0], (0.0, 0.25, 0.5, 0.75)
    reached = [
        next(each for each in told if each[1].processed >= share * each[1].total)
        for share in shares
    ]
    for now_s, progress in reached:
        assert pytest.approx(end_s - now_s, rel=0.1) == progress.eta_s
    etas_s = [progress.eta_s for _, progress in told]
    assert max(b - a for a, b in itertools.pairwise(etas_s)) <= 0.01 * etas_s[0]


@pytest.mark.parametrize("strategy", CHUNK_STRATEGIES)
def test_short_prompts_ride_together(strategy: ChunkStrategyName) -> None:
    """Each of 140 tiny ones was counted as if it paid for a microbatch: twice what is true."""
    stages = (
        StageLatency(fixed_ms=37.9, ms_per_token=1.54),
        StageLatency(fixed_ms=44.1, ms_per_token=1.11),
    )
    config = dataclasses.replace(CONFIG, chunk_strategy=strategy, chunked_prefill_tokens=256)
    arrivals = [arrival(f"r{index}", 5 + index % 9) for index in range(140)]
    arrivals.append(arrival("long", 3000))
    told = [
        (now_s, progress.eta_s)
        for now_s, progress in watch(arrivals, PipelineLatency(stages), config=config)
        if progress.request_id == "long"
    ]
    end_s = told[-1][0]
    for now_s, eta_s in told[: len(told) // 2]:
        assert pytest.approx(end_s - now_s, rel=0.15) == eta_s


@pytest.mark.parametrize("strategy", CHUNK_STRATEGIES)
def test_those_served_later_do_not_count(strategy: ChunkStrategyName) -> None:
    """Of one length the first goes on to its end, and who is second waits for it alone."""
    config = dataclasses.replace(CONFIG, chunk_strategy=strategy)
    arrivals = [arrival(name, 131_072) for name in ("first", "second", "third")]
    told = watch(arrivals, h200_pipeline(2), config=config)
    for name in ("first", "second", "third"):
        own = [(now_s, each) for now_s, each in told if each.request_id == name]
        end_s = own[-1][0]
        for now_s, progress in own[: len(own) // 2]:
            assert pytest.approx(end_s - now_s, rel=0.1) == progress.eta_s


@pytest.mark.parametrize("strategy", CHUNK_STRATEGIES)
@pytest.mark.parametrize(("num_rows", "context"), [(20, 1000), (4, 10_000)])
def test_what_is_told_beside_rows_comes_true(
    strategy: ChunkStrategyName, num_rows: int, context: int
) -> None:
    """Rows are a tenth to a fifth of all time here."""
    stage = StageLatency(
        floor_ms=0.5, fixed_ms=1.0, ms_per_token=0.006, ms_per_row=0.1, ms_per_row_token=2e-4
    )
    config = dataclasses.replace(CONFIG, chunk_strategy=strategy, chunked_prefill_tokens=2048)
    arrivals = [arrival(f"r{index}", context, new=250) for index in range(num_rows)]
    arrivals.append(arrival("long", 40_000, at_s=0.5))
    told = [
        (now_s, progress.eta_s)
        for now_s, progress in watch(arrivals, PipelineLatency((stage,) * 4), config=config)
        if progress.request_id == "long"
    ]
    end_s = told[-1][0]
    early = told[: len(told) // 2]
    assert len(early) > 5
    for now_s, eta_s in early:
        assert pytest.approx(end_s - now_s, rel=0.1) == eta_s
