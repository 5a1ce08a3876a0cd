"""How sizes are off the terms: told from noise, and kept only if it predicts better."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from scheduler.latency_fit import LatencyPoint, fit_latency
from scheduler.latency_model import StageLatency, Work
from scheduler.size_fit import fit_size_ratios
from scheduler.size_ratios import SizeRatios
from tests.layer_table import layer_points

_SIZES = (512, 1024, 2048, 4096, 8192)
_PREFIXES = (0, 8192, 32_768, 65_536, 131_072, 262_144)
_TRUE = StageLatency(
    fixed_ms=0.1,
    ms_per_token=6e-4,
    ms_per_pair=1.3e-8,
    size_ratios=SizeRatios(tokens=_SIZES, ratios=(0.92, 1.06, 0.97, 1.0, 1.05)),
)
_PLAIN = dataclasses.replace(_TRUE, size_ratios=None)
_WORKS = [Work.of_chunk(prefix, prefix + size) for size in _SIZES for prefix in _PREFIXES]


def _times(latency: StageLatency, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    exact = np.array([latency.microbatch_ms(work) for work in _WORKS])
    return exact * np.exp(noise * rng.normal(size=len(exact)))


def _points(ms_N: np.ndarray) -> list[LatencyPoint]:
    return [LatencyPoint(work=w, ms=ms) for w, ms in zip(_WORKS, ms_N.tolist(), strict=True)]


def test_ratios_come_back_by_so_much_as_points_say() -> None:
    """Six prefixes say six tenths of it, one wild point among them hardly anything."""
    ms_N = _times(_TRUE)
    ms_N[7] *= 30
    ratios = fit_size_ratios(_PLAIN, _WORKS, ms_N)
    assert ratios is not None
    assert _SIZES == ratios.tokens
    assert _TRUE.size_ratios is not None
    logs = [6 / 10 * np.log(ratio) for ratio in _TRUE.size_ratios.ratios]
    assert [pytest.approx(log, abs=0.002) for log in logs[2:]] == np.log(ratios.ratios[2:]).tolist()
    assert pytest.approx(logs[1], abs=0.04) == np.log(ratios.ratios[1])


def test_sizes_behind_one_prefix_tell_nothing() -> None:
    """A single time is noise as likely as a size."""
    works = [Work.of_chunk(0, size) for size in _SIZES]
    ms_N = np.array([_TRUE.microbatch_ms(work) for work in works])
    assert fit_size_ratios(_PLAIN, works * 9, np.tile(ms_N, 9)) is None


def test_times_of_something_else_tell_nothing() -> None:
    """At the floor launching is timed, and where most is fixed that is."""
    floored = dataclasses.replace(_PLAIN, floor_ms=1e4)
    assert fit_size_ratios(floored, _WORKS, _times(floored)) is None
    fixed = dataclasses.replace(_PLAIN, fixed_ms=1e4)
    assert fit_size_ratios(fixed, _WORKS, _times(fixed, noise=0.1)) is None
    rows = [Work.of_rows([100] * count) for count in range(1, 20)]
    assert fit_size_ratios(_PLAIN, rows, np.ones(len(rows))) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_fit_keeps_them_where_they_predict(seed: int) -> None:
    """Two sizes are 15 % apart; behind prefixes that it has not seen the fit is off by 8 % of it.

    It keeps back some, and its terms cannot but take a part of it for theirs.
    """
    fit = fit_latency(_points(_times(_TRUE, noise=0.02, seed=seed)))
    assert fit.latency is not None
    assert fit.latency.size_ratios is not None
    for prefix in (16_384, 500_000):
        small, large = (
            fit.latency.chunk_ms(prefix, prefix + 512) / _TRUE.chunk_ms(prefix, prefix + 512),
            fit.latency.chunk_ms(prefix, prefix + 1024) / _TRUE.chunk_ms(prefix, prefix + 1024),
        )
        assert pytest.approx(1.0, abs=0.08) == small / large


@pytest.mark.parametrize("seed", range(8))
def test_noise_alone_is_no_size(seed: int) -> None:
    """Times that the terms explain get no ratios, or ratios that hardly differ from 1."""
    fit = fit_latency(_points(_times(_PLAIN, noise=0.03, seed=seed)))
    assert fit.latency is not None
    kept = fit.latency.size_ratios
    assert kept is None or max(abs(ratio - 1) for ratio in kept.ratios) < 0.03


def test_measured_layer() -> None:
    """512 tokens are better than the terms say; nine in ten unseen points are closer than 6 %."""
    fit = fit_latency(layer_points())
    assert fit.latency is not None
    assert fit.latency.size_ratios is not None
    assert pytest.approx(0.967, abs=0.005) == fit.latency.size_ratios.at(512)
    assert pytest.approx(1.022, abs=0.005) == fit.latency.size_ratios.at(8192)
    assert fit.p90_error < 0.062
