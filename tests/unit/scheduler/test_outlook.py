"""How long a prompt is told to take."""

from __future__ import annotations

import pytest

from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.outlook import time_left_ms
from scheduler.prefill import Prefill

_LATENCY = PipelineLatency((StageLatency(fixed_ms=2.0, ms_per_token=0.1, edge_ms=1.0),) * 3)
"""A chunk of 100 tokens takes 13 ms on each of three stages."""


def _prefill(num_chunks: int, num_sent: int, num_done: int) -> Prefill:
    """Return a prompt of chunks of 100."""
    ends = [100 * index for index in range(1, num_chunks + 1)]
    return Prefill(
        start=0, end=ends[-1], borders=(0, *ends), sent_ends=ends[:num_sent], num_done=num_done
    )


def _left_ms(own: Prefill, *others: Prefill, window: int = 4) -> float:
    """Ask."""
    return time_left_ms(own, others, _LATENCY, window=window)


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


def test_small_window_slows_all_down() -> None:
    """One microbatch at a time passes three stages, one after the other."""
    assert pytest.approx(3 * 7 * 13) == _left_ms(_prefill(10, 4, 3), window=1)


def test_nothing_is_left_of_what_is_done() -> None:
    """Whatever others have still to do."""
    assert _left_ms(_prefill(3, 3, 3), _prefill(9, 0, 0)) == 0
