"""What a worker times at start-up, and that it stops in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.latency_fit import LatencyPoint, fit_latency
from scheduler.latency_model import StageLatency
from scheduler.latency_profile import ProfileLimits, ProfileShape, profile_shapes

_SLOW = StageLatency(
    floor_ms=8.0,
    fixed_ms=3.0,
    ms_per_token=0.7,
    ms_per_pair=1e-5,
    ms_per_row=4.0,
    ms_per_row_token=0.001,
)


def _limits(budget_ms: float = 20_000.0) -> ProfileLimits:
    return ProfileLimits(
        max_chunk_tokens=2048, max_prefix_tokens=6144, max_rows=16, budget_ms=budget_ms
    )


def _run(
    limits: ProfileLimits, time_ms: Callable[[ProfileShape], float]
) -> tuple[list[tuple[ProfileShape, float]], tuple[LatencyPoint, ...]]:
    """Play the worker; return all runs and the points."""
    runs: list[tuple[ProfileShape, float]] = []
    shapes = profile_shapes(limits)
    shape = next(shapes)
    while True:
        runs.append((shape, time_ms(shape)))
        try:
            shape = shapes.send(runs[-1][1])
        except StopIteration as stop:
            points: tuple[LatencyPoint, ...] = stop.value
            return runs, points


def _slow_ms(shape: ProfileShape) -> float:
    return _SLOW.microbatch_ms(shape.work)


def test_profile_of_a_slow_stage_is_fitted() -> None:
    """20 s on a slow CPU are enough for an accepted fit of chunks, prefixes and rows."""
    runs, points = _run(_limits(), _slow_ms)
    assert sum(ms for _, ms in runs) <= 20_000
    fit = fit_latency(points)
    assert fit.latency is not None
    assert fit.refused is None
    for shape, ms in runs:
        assert pytest.approx(ms, rel=0.01) == fit.latency.microbatch_ms(shape.work)


def test_first_run_is_dropped() -> None:
    """It compiles and allocates; its time says nothing about the next."""
    calls: list[ProfileShape] = []

    def cold_ms(shape: ProfileShape) -> float:
        calls.append(shape)
        return 7234.0 if len(calls) == 1 else _slow_ms(shape)

    runs, points = _run(_limits(), cold_ms)
    assert len(runs) - 1 == len(points)
    assert 7234.0 not in [point.ms for point in points]
    assert ProfileShape(prefix_tokens=0, chunk_tokens=2048) == calls[0]


def test_from_long_to_short() -> None:
    """Nothing grows its buffers while it is timed."""
    runs, _ = _run(_limits(1e9), _slow_ms)
    plain = [s.chunk_tokens for s, _ in runs[1:7]]
    assert [2048, 1024, 512, 256, 128, 64] == plain


def test_time_left_repeats_rounds() -> None:
    """A fast stage is timed three times over, so that the fit sees what varies."""
    runs, _ = _run(_limits(1e9), _slow_ms)
    shapes = [shape for shape, _ in runs[1:]]
    assert {3} == {shapes.count(shape) for shape in shapes}
    assert any(shape.num_rows and shape.prefix_tokens for shape in shapes)
    assert 6144 == max(shape.prefix_tokens for shape in shapes)


@pytest.mark.parametrize("budget_ms", [0.0, 1500.0, 3000.0, 5000.0, 10_000.0])
def test_budget_is_kept(budget_ms: float) -> None:
    """Only the first run may go over; what may not fit is skipped for what does."""
    runs, _ = _run(_limits(budget_ms), _slow_ms)
    first_ms = runs[0][1]
    assert sum(ms for _, ms in runs) <= max(budget_ms, first_ms)


def test_tiny_limits() -> None:
    """One token, no pages before it and no rows are no special case."""
    limits = ProfileLimits(max_chunk_tokens=1, max_prefix_tokens=0, max_rows=0, budget_ms=100.0)
    runs, points = _run(limits, lambda _: 1.0)
    assert 4 == len(runs)
    assert 3 == len(points)
