"""A stage's latency that follows what acknowledgements tell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from scheduler.latency_model import StageLatency, Work
from scheduler.latency_refit import LatencyRefit
from scheduler.size_ratios import SizeRatios

_FIRST = StageLatency(
    floor_ms=5.0,
    fixed_ms=1.0,
    ms_per_token=0.01,
    ms_per_pair=1e-7,
    ms_per_row=0.1,
    ms_per_row_token=1e-4,
    edge_ms=0.5,
)
_PROBES = [
    *(Work.of_chunk(prefix, prefix + x) for x in (512, 1024, 4096) for prefix in (0, 8192, 65536)),
    Work.of_rows([4096] * 32),
]


def _refit() -> LatencyRefit:
    return LatencyRefit(_FIRST, max_chunk_tokens=4096, max_prefix_tokens=65536, max_rows=32)


def _mixed_work(rng: np.random.Generator) -> Work:
    """Return chunks and rows of all sizes."""
    if rng.random() < 0.3:
        return Work.of_rows([int(rng.integers(1, 65536))] * int(rng.integers(1, 33)))
    prefix = int(rng.integers(0, 65536))
    return Work.of_chunk(prefix, prefix + int(rng.integers(64, 4097)))


def _always(work: Work) -> Callable[[np.random.Generator], Work]:
    return lambda _: work


def _watch(
    refit: LatencyRefit,
    true: StageLatency,
    next_work: Callable[[np.random.Generator], Work],
    *,
    outliers: float = 0.0,
) -> int:
    """Let a stage work 400 times, one a second; return how often it was fitted again."""
    rng = np.random.default_rng(3)
    num_fits = 0
    for now_s in range(400):
        work = next_work(rng)
        ms = true.microbatch_ms(work) * float(np.exp(0.03 * rng.normal()))
        refit.observe(work, ms * 20 if rng.random() < outliers else ms)
        num_fits += refit.refitted(float(now_s)) is not None
    return num_fits


def _worst_error(latency: StageLatency, true: StageLatency) -> float:
    return max(abs(latency.microbatch_ms(w) / true.microbatch_ms(w) - 1) for w in _PROBES)


def test_a_right_fit_stays() -> None:
    """Noise and a few outliers are no reason to plan again."""
    refit = _refit()
    assert 0 == _watch(refit, _FIRST, _mixed_work, outliers=0.05)
    assert _FIRST == refit.latency
    assert 10 < refit.num_outliers < 40


def test_follows_a_slower_attention() -> None:
    """A term that changed is found among those that did not."""
    refit = _refit()
    true = StageLatency(
        floor_ms=5.0, fixed_ms=1.0, ms_per_token=0.01, ms_per_pair=2e-7, ms_per_row=0.1,
        ms_per_row_token=1e-4, edge_ms=0.5,
    )  # fmt: skip
    before = _worst_error(_FIRST, true)
    assert 1 <= _watch(refit, true, _mixed_work, outliers=0.03)
    assert _worst_error(refit.latency, true) < before / 3


def test_what_was_long_ago_is_forgotten() -> None:
    """A device that gets warm after hours is planned with as it is, not as it was in the mean."""
    refit, rng = _refit(), np.random.default_rng(4)
    for _ in range(4000):
        work = _mixed_work(rng)
        refit.observe(work, _FIRST.microbatch_ms(work))
    true = dataclasses.replace(
        _FIRST, fixed_ms=1.25, ms_per_token=0.0125, ms_per_pair=1.25e-7, ms_per_row=0.125
    )
    _watch(refit, true, _mixed_work)
    assert _worst_error(refit.latency, true) < _worst_error(_FIRST, true) / 2


def test_ratios_of_sizes_stay() -> None:
    """They are not taken for a slower machine, and what changes beside them is found."""
    ratios = SizeRatios(tokens=(256, 1024, 4096), ratios=(0.85, 1.0, 1.2))
    first = dataclasses.replace(_FIRST, size_ratios=ratios)
    limits = {"max_chunk_tokens": 4096, "max_prefix_tokens": 65536, "max_rows": 32}
    assert 0 == _watch(LatencyRefit(first, **limits), first, _mixed_work)
    refit = LatencyRefit(first, **limits)
    true = dataclasses.replace(first, ms_per_pair=2e-7)
    before = _worst_error(first, true)
    assert 1 <= _watch(refit, true, _mixed_work)
    assert ratios == refit.latency.size_ratios
    assert _worst_error(refit.latency, true) < before / 3


def test_chunks_and_rows_move_apart() -> None:
    """Rows that are launched faster than thought say nothing about chunks."""
    first = dataclasses.replace(_FIRST, floor_ms=8.0, rows_fixed_ms=6.0)
    refit = LatencyRefit(first, max_chunk_tokens=4096, max_prefix_tokens=65536, max_rows=32)
    true = dataclasses.replace(first, rows_fixed_ms=4.0)
    works = (Work.of_rows([100] * 8), Work.of_chunk(0, 128), Work.of_chunk(8192, 8192 + 2048))
    assert 1 <= _watch(refit, true, lambda rng: works[rng.integers(3)])
    for work in works:
        assert pytest.approx(true.microbatch_ms(work), rel=0.05) == refit.latency.microbatch_ms(
            work
        )


def test_follows_a_machine_that_is_twice_as_slow() -> None:
    """An error that stays is no outlier, however large."""
    refit = _refit()
    true = _FIRST.of_layers(2)
    assert 1 <= _watch(refit, true, _mixed_work)
    assert _worst_error(refit.latency, true) < 0.2


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("work", [Work.of_chunk(0, 1024), Work.of_rows([100] * 4)])
def test_work_that_is_always_alike(ratio: float, work: Work) -> None:
    """Where all is slower by a ratio, knowing one work makes no other prediction worse."""
    refit = _refit()
    true = StageLatency(
        floor_ms=5.0 * ratio,
        fixed_ms=ratio,
        ms_per_token=0.01 * ratio,
        ms_per_pair=1e-7 * ratio,
        ms_per_row=0.1 * ratio,
        ms_per_row_token=1e-4 * ratio,
        edge_ms=0.5,
    )
    _watch(refit, true, _always(work))
    for probe in _PROBES:
        error = abs(math.log(refit.latency.microbatch_ms(probe) / true.microbatch_ms(probe)))
        first_error = abs(math.log(_FIRST.microbatch_ms(probe) / true.microbatch_ms(probe)))
        assert error < first_error + 0.05


_CPU = StageLatency(
    fixed_ms=33.8,
    ms_per_prefix_token=0.0102,
    ms_per_token=1.529,
    ms_per_pair=2.77e-4,
    ms_per_row=2.17,
)
"""Half of SmolLM2-135M on a CPU core, where a chunk has no floor."""


def _planned_work(rng: np.random.Generator) -> Work:
    """Return a chunk of one of the few sizes that are planned."""
    start = 192 * int(rng.integers(0, 16))
    return Work.of_chunk(start, start + int(rng.choice([128, 192, 256])))


@pytest.mark.parametrize("ratio", [0.4, 1.8, 3.0])
def test_a_slower_machine_is_slower_at_all(ratio: float) -> None:
    """Chunks of a few sizes, as are planned, must not make what each chunk pays look cheaper.

    The borders that are best depend on the ratios of the terms.
    """
    refit = LatencyRefit(_CPU, max_chunk_tokens=256, max_prefix_tokens=16384, max_rows=256)
    true = StageLatency(
        fixed_ms=33.8 * ratio,
        ms_per_prefix_token=0.0102 * ratio,
        ms_per_token=1.529 * ratio,
        ms_per_pair=2.77e-4 * ratio,
    )
    _watch(refit, true, _planned_work)
    fitted = refit.latency
    assert pytest.approx(true.fixed_ms, rel=0.2) == fitted.fixed_ms
    for tokens in (64, 128, 256, 512):
        work = Work.of_chunk(2048, 2048 + tokens)
        assert pytest.approx(true.microbatch_ms(work), rel=0.06) == fitted.microbatch_ms(work)


def test_noise_does_not_make_a_machine_look_fast() -> None:
    """A prompt takes the sum of its chunks' times, so it is their mean that must be met."""
    refit = LatencyRefit(_CPU, max_chunk_tokens=256, max_prefix_tokens=16384, max_rows=256)
    rng = np.random.default_rng(5)
    predicted_ms = measured_ms = 0.0
    for now_s in range(1000):
        work = _planned_work(rng)
        ms = 2 * _CPU.microbatch_ms(work) * float(rng.gamma(8.0, 1 / 8))
        refit.observe(work, ms)
        refit.refitted(float(now_s))
        if now_s >= 100:
            predicted_ms += refit.latency.microbatch_ms(work)
            measured_ms += ms
    assert pytest.approx(measured_ms, rel=0.06) == predicted_ms


def test_a_chat_does_not_make_chunks_look_cheap() -> None:
    """One row by itself takes a path of its own, faster than what each chunk pays."""
    refit = LatencyRefit(_CPU, max_chunk_tokens=256, max_prefix_tokens=16384, max_rows=256)
    for now_s in range(50):
        refit.observe(Work.of_rows([130]), 22.0)
        assert refit.refitted(float(now_s)) is None
    _watch(refit, _CPU, _planned_work)
    assert pytest.approx(_CPU.fixed_ms, rel=0.05) == refit.latency.fixed_ms


def test_floor_is_followed_by_itself() -> None:
    """Launching became faster: small work says so, and nothing about large work."""
    refit = _refit()
    true = StageLatency(floor_ms=4.0, edge_ms=0.5)
    _watch(refit, true, _always(Work.of_rows([10])))
    assert pytest.approx(4.0, rel=0.05) == refit.latency.floor_ms
    for probe in _PROBES:
        first_ms = _FIRST.microbatch_ms(probe)
        if first_ms > 5.5:
            assert pytest.approx(first_ms, rel=0.03) == refit.latency.microbatch_ms(probe)


@pytest.mark.parametrize("ms", [math.nan, math.inf, -1.0, 0.0, 0.5])
def test_impossible_times_change_nothing(ms: float) -> None:
    """0.5 ms is what the edge alone takes."""
    refit = _refit()
    for now_s in range(100):
        refit.observe(Work.of_chunk(0, 1024), ms)
        assert refit.refitted(float(now_s)) is None


def test_waits_for_observations_and_time() -> None:
    """Plans are not made again with every acknowledgement."""
    refit = _refit()
    true = _FIRST.of_layers(2)
    rng = np.random.default_rng(1)
    fitted_at = []
    for tick in range(3000):
        work = _mixed_work(rng)
        refit.observe(work, true.microbatch_ms(work))
        if refit.refitted(tick / 100) is not None:
            fitted_at.append(tick / 100)
    assert 1 <= len(fitted_at) <= 6
    assert min(np.diff(fitted_at), default=5.0) >= 5.0
