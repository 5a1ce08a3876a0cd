"""What a worker times at start-up, and that it stops in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.latency_fit import LatencyPoint, fit_latency
from scheduler.latency_model import StageLatency, Work
from stage_worker.profile_plan import (
    ProfileLimits,
    ProfilePoint,
    ProfileShape,
    ProfileStep,
    Timing,
    profile_steps,
    spread,
)

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
        max_chunk_tokens=512, max_prefix_tokens=4096, max_rows=16, budget_ms=budget_ms
    )


def _run(
    limits: ProfileLimits, time_ms: Callable[[ProfileShape], float]
) -> list[tuple[ProfileStep, float]]:
    """Play the worker; return all runs and their times."""
    runs: list[tuple[ProfileStep, float]] = []
    steps = profile_steps(limits)
    left_ms = limits.budget_ms
    step = next(steps)
    while True:
        ms = time_ms(step.shape)
        runs.append((step, ms))
        left_ms -= ms
        try:
            step = steps.send(Timing(ms=ms, left_ms=left_ms))
        except StopIteration:
            return runs


def _work(shape: ProfileShape) -> Work:
    if shape.num_rows:
        return Work.of_rows([shape.prefix_tokens + 1] * shape.num_rows)
    return Work.of_chunk(shape.prefix_tokens, shape.prefix_tokens + shape.chunk_tokens)


def _slow_ms(shape: ProfileShape) -> float:
    return _SLOW.microbatch_ms(_work(shape))


def test_profile_of_a_slow_stage_is_fitted() -> None:
    """20 s on a slow CPU are enough for an accepted fit of chunks, prefixes and rows."""
    runs = _run(_limits(), _slow_ms)
    assert sum(ms for _, ms in runs) <= 20_000
    points = [LatencyPoint(work=_work(step.shape), ms=ms) for step, ms in runs if step.is_timed]
    fit = fit_latency(points)
    assert fit.latency is not None
    assert fit.refused is None
    for step, ms in runs:
        assert pytest.approx(ms, rel=0.01) == fit.latency.microbatch_ms(_work(step.shape))


def test_first_runs_are_not_timed() -> None:
    """They compile and allocate; their times say nothing about the next."""
    runs = _run(_limits(1e9), _slow_ms)
    untimed = [step.shape.chunk_tokens for step, _ in runs if not step.is_timed]
    assert [16, 32, 64, 128, 256, 512] == untimed
    assert not any(step.is_timed for step, _ in runs[: len(untimed)])


def test_from_long_to_short() -> None:
    """Nothing grows its buffers while it is timed."""
    runs = _run(_limits(1e9), _slow_ms)
    timed = [step.shape.chunk_tokens for step, _ in runs if step.is_timed]
    assert [512, 256, 128, 64, 32, 16] == timed[:6]


def test_time_left_repeats_rounds() -> None:
    """A fast stage is timed three times over, so that the fit sees what varies."""
    runs = _run(_limits(1e9), _slow_ms)
    shapes = [step.shape for step, _ in runs if step.is_timed]
    assert {3} == {shapes.count(shape) for shape in shapes}
    assert any(shape.num_rows and shape.prefix_tokens for shape in shapes)
    assert 4096 == max(shape.prefix_tokens for shape in shapes)


def test_repeats_leave_most_of_the_time_to_the_user() -> None:
    """The timeout is for slow stages; one that is done in time must serve soon."""
    runs = _run(_limits(20_000), _slow_ms)
    assert 0.25 * 20_000 < sum(ms for _, ms in runs) <= 0.35 * 20_000


@pytest.mark.parametrize("budget_ms", [1500.0, 3000.0, 5000.0, 10_000.0])
def test_budget_is_kept(budget_ms: float) -> None:
    """What may not fit is skipped for what does; the longest chunk is one that is affordable."""
    runs = _run(_limits(budget_ms), _slow_ms)
    assert sum(ms for _, ms in runs) <= budget_ms
    assert any(step.is_timed for step, _ in runs)
    assert max(ms for step, ms in runs if not step.is_timed) <= budget_ms / 7


def test_slow_stages_measure_shorter_chunks() -> None:
    """A whole round that a fit can be made of, rather than a few long runs."""
    for slowness, longest in ((1, 512), (2, 512), (4, 256), (8, 128)):
        runs = _run(_limits(), lambda shape, times=slowness: times * _slow_ms(shape))  # type: ignore[misc]
        works = {step.shape for step, _ in runs if step.is_timed}
        assert longest == max(work.chunk_tokens for work in works)
        assert len(works) >= 16
        assert 4096 == max(work.prefix_tokens for work in works)


def test_no_budget_at_all() -> None:
    """Two runs of the shortest chunk tell that nothing can be timed."""
    runs = _run(_limits(0.0), _slow_ms)
    assert [(16, False)] * 2 == [(step.shape.chunk_tokens, step.is_timed) for step, _ in runs]


def test_a_slow_first_run_does_not_shorten_the_chunks() -> None:
    """Compiling for seconds says nothing about the next chunk: a second run is believed."""
    seen: set[ProfileShape] = set()

    def compiling_ms(shape: ProfileShape) -> float:
        cold_ms = 0.0 if shape in seen else 1000.0
        seen.add(shape)
        return cold_ms + _slow_ms(shape) / 10

    runs = _run(_limits(), compiling_ms)
    assert 512 == max(step.shape.chunk_tokens for step, _ in runs)


def test_progress_grows_to_the_end() -> None:
    """A bar that jumps back or stands still would look broken."""
    shares = [step.progress for step, _ in _run(_limits(1e9), _slow_ms)]
    assert 0.0 == shares[0]
    assert sorted(shares) == shares
    assert 0.95 < shares[-1] < 1


def test_tiny_limits() -> None:
    """One token, no pages before it and no rows are no special case."""
    limits = ProfileLimits(max_chunk_tokens=1, max_prefix_tokens=0, max_rows=0, budget_ms=100.0)
    runs = _run(limits, lambda _: 1.0)
    assert [False, True, True, True] == [step.is_timed for step, _ in runs]


def test_spread_is_the_median_of_repeated_works() -> None:
    """One disturbed run must not make a good profile look noisy, many must."""
    times_us = {16: (100, 110), 32: (200, 240), 64: (400, 4000), 128: (900,)}
    points = [
        ProfilePoint(shape=ProfileShape(prefix_tokens=0, chunk_tokens=tokens), compute_us=us)
        for tokens, listed in times_us.items()
        for us in listed
    ]
    assert pytest.approx(0.2) == spread(points)
    assert 0.0 == spread(points[-1:])
