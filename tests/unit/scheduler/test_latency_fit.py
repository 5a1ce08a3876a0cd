"""Fits of measured times, and which may be planned with."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

from scheduler.latency_fit import FitGate, LatencyPoint, fit_latency, fit_points, relative_errors
from scheduler.latency_model import TERMS, StageLatency, Work
from tests.layer_table import layer_points
from tests.measured_profiles import profile_points

_TRUE = StageLatency(
    floor_ms=6.0,
    fixed_ms=1.5,
    ms_per_prefix_token=2e-4,
    ms_per_token=0.02,
    ms_per_pair=4e-7,
    ms_per_row=0.3,
    ms_per_row_token=1e-4,
)
_WORKS = [
    *(Work.of_chunk(prefix, prefix + x) for x in (64, 128, 256, 512, 1024, 2048, 4096)
      for prefix in (0, 2048, 8192, 32768)),
    *(Work.of_rows([length] * num) for num in (1, 8, 32) for length in (512, 8192)),
]  # fmt: skip


def _points(latency: StageLatency, noise: float = 0.0, seed: int = 0) -> list[LatencyPoint]:
    rng = np.random.default_rng(seed)
    return [
        LatencyPoint(work=work, ms=latency.microbatch_ms(work) * float(np.exp(noise * n)))
        for work, n in zip(_WORKS, rng.normal(size=len(_WORKS)), strict=True)
    ]


def _assert_close(expected: StageLatency, fitted: StageLatency, tolerance: float) -> None:
    for name in ("floor_ms", *TERMS, "edge_ms"):
        value = getattr(expected, name)
        assert pytest.approx(value, rel=tolerance) == getattr(fitted, name), name
    assert expected.size_ratios == fitted.size_ratios


def test_exact_data_gives_its_terms_back() -> None:
    """All seven terms can be told apart by the works of a profile."""
    _assert_close(_TRUE, fit_points(_points(_TRUE)), 1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_averaged(seed: int) -> None:
    """5 % of noise bends no predicted time by more than 10 %."""
    fitted = fit_points(_points(_TRUE, noise=0.05, seed=seed))
    assert relative_errors(fitted, _points(_TRUE)).max() < 0.10


@pytest.mark.parametrize("factor", [30.0, 0.02])
def test_far_points_have_no_say(factor: float) -> None:
    """A run that compiled something, or a clock that jumped: five of 34 points."""
    points = _points(_TRUE, noise=0.02)
    for index in (0, 7, 15, 22, 30):
        points[index] = dataclasses.replace(points[index], ms=points[index].ms * factor)
    assert relative_errors(fit_points(points), _points(_TRUE)).max() < 0.08


def test_points_at_the_floor_do_not_bend_the_slope() -> None:
    """Half of all chunks are so short that launching takes longer than computing."""
    true = dataclasses.replace(_TRUE, floor_ms=25.0)
    fitted = fit_points(_points(true, noise=0.01))
    assert pytest.approx(25.0, rel=0.03) == fitted.floor_ms
    assert pytest.approx(0.02, rel=0.03) == fitted.ms_per_token
    assert pytest.approx(4e-7, rel=0.03) == fitted.ms_per_pair


def test_without_prefixes_all_is_the_tokens() -> None:
    """What cannot be told apart is not called a prefix's cost, which would punish every cut."""
    points = [p for p in _points(_TRUE) if p.work.new_tokens and not p.work.prefix_tokens]
    assert 0.0 == fit_points(points).ms_per_prefix_token


def test_o22_first_sample_is_an_outlier() -> None:
    """O22: plain least squares is bent by one sample; a and b must be within 5 %."""
    lengths = list(range(7680, 0, -60))
    times_ms = [7234.0, *(2e-6 * x * x + 0.02 * x + 5 for x in lengths[1:])]
    bent = np.polyfit(lengths, times_ms, 2)
    assert pytest.approx(2.9e-5, rel=0.01) == bent[0]
    assert pytest.approx(-0.147, rel=0.01) == bent[1]
    points = [
        LatencyPoint(work=Work.of_chunk(0, x), ms=ms)
        for x, ms in zip(lengths, times_ms, strict=True)
    ]
    fit = fit_latency(points, FitGate(min_prefixes=1))
    assert fit.latency is not None
    assert fit.refused is None
    assert pytest.approx(2e-6, rel=0.05) == fit.latency.ms_per_pair
    assert pytest.approx(0.02, rel=0.05) == fit.latency.ms_per_token


def test_exact_curve_behind_an_outlier() -> None:
    """The coefficients come back exactly, the constant too."""
    lengths = range(5120, 0, -40)
    points = [
        LatencyPoint(work=Work.of_chunk(0, x), ms=1e-6 * x * x + 0.0285 * x + 9) for x in lengths
    ]
    points[0] = dataclasses.replace(points[0], ms=99999.0)
    fitted = fit_points(points)
    _assert_close(
        StageLatency(fixed_ms=9.0, ms_per_token=0.0285, ms_per_pair=1e-6), fitted, tolerance=1e-6
    )


def test_measured_layer() -> None:
    """One layer on an H200, up to a million tokens of prefix: the fit's error is 2 to 3 %.

    Without a floor the terms are c=0.112, g=0, b=6.12e-4, a=1.31e-8 at 4 %.
    """
    fit = fit_latency(layer_points())
    assert fit.latency is not None
    assert fit.refused is None
    assert fit.median_error < 0.03
    assert fit.p90_error < 0.09
    assert pytest.approx(0.69, rel=0.02) == fit.latency.floor_ms
    assert fit.latency.fixed_ms < 0.15
    assert 0.0 == fit.latency.ms_per_prefix_token
    assert pytest.approx(6.12e-4, rel=0.05) == fit.latency.ms_per_token
    assert pytest.approx(1.31e-8, rel=0.05) == fit.latency.ms_per_pair


def _refusal(points: list[LatencyPoint]) -> str:
    refused = fit_latency(points).refused
    assert refused is not None
    return refused


def test_refuses_too_few_points() -> None:
    """The same work again is no new point."""
    assert "3 different points were measured, at least 8" in _refusal(_points(_TRUE)[:3] * 10)
    assert "0 different points" in _refusal([])


def test_refuses_chunks_of_one_size() -> None:
    """What a token costs would be a guess."""
    points = [LatencyPoint(work=Work.of_chunk(i * 64, i * 64 + 512), ms=10.0) for i in range(20)]
    assert "largest chunk measured is 1.0 times the smallest" in _refusal(points)


def test_refuses_chunks_without_prefixes() -> None:
    """What a prefix costs would be extrapolated a thousandfold."""
    points = [LatencyPoint(work=Work.of_chunk(0, 64 * i), ms=5.0 + i) for i in range(1, 20)]
    assert "behind 1 different prefixes, at least 2" in _refusal(points)


def test_refuses_times_that_do_not_grow() -> None:
    """All at the floor: any plan would look as good as any other."""
    points = [dataclasses.replace(point, ms=7.0) for point in _points(_TRUE)]
    assert "do not grow with the chunk" in _refusal(points)


def test_refuses_times_without_a_pattern() -> None:
    """A machine that is busy with something else; 10 % is not "10 %, at most 10 %"."""
    refused = _refusal(_points(_TRUE, noise=1.0))
    assert re.fullmatch(
        r"median error at unseen points is \d+\.\d%, above the limit of \d+%", refused
    )


def test_refuses_a_minority_of_far_points() -> None:
    """Their median hides one point in seven, which no plan could count on."""
    points = _points(_TRUE, noise=0.01)
    for index in (0, 7, 15, 22, 30):
        points[index] = dataclasses.replace(points[index], ms=points[index].ms * 3)
    fit = fit_latency(points)
    assert fit.median_error < 0.02
    assert fit.p90_error > 0.35
    assert (fit.refused or "").startswith("90th percentile error at unseen points is 66")


@pytest.mark.parametrize("seed", range(5))
def test_judges_by_points_that_the_fit_has_not_seen(seed: int) -> None:
    """Seven terms go through a dozen noisy points, and foretell others badly."""
    points = _points(_TRUE, noise=0.1, seed=seed)[::3]
    fit = fit_latency(points)
    assert fit.latency is not None
    assert float(np.median(relative_errors(fit.latency, points))) < 0.05
    assert fit.median_error > 0.10
    assert fit.refused is not None


@pytest.mark.parametrize("ms", [math.nan, math.inf, -1.0, 0.0])
def test_impossible_times_are_dropped(ms: float) -> None:
    """A clock that stood still or went back is no measurement."""
    points = [*_points(_TRUE), LatencyPoint(work=Work.of_chunk(0, 100), ms=ms)]
    fit = fit_latency(points)
    assert fit.latency is not None
    _assert_close(_TRUE, fit.latency, 1e-3)


def test_rows_have_a_fixed_time_of_their_own() -> None:
    """A graph of a decode step reads all weights, which a chunk of some tokens hides."""
    true = dataclasses.replace(_TRUE, floor_ms=10.0, rows_fixed_ms=6.0)
    fitted = fit_points(_points(true, noise=0.02))
    assert relative_errors(fitted, _points(true)).max() < 0.05
    assert pytest.approx(6.0, rel=0.05) == fitted.rows_fixed_ms


def test_one_fixed_time_is_enough_where_it_is_the_same() -> None:
    """Without noise there is no second one, and with noise it is nearly the first."""
    assert fit_points(_points(_TRUE)).rows_fixed_ms is None
    fitted = fit_points(_points(_TRUE, noise=0.05))
    assert pytest.approx(fitted.least_rows_ms, rel=0.05) == _TRUE.least_rows_ms


@pytest.mark.parametrize(
    "layers",
    [
        "qwen3-8b-layers-0-8",
        "qwen3-8b-layers-9-17",
        "qwen3-8b-layers-18-35",
        "qwen3-8b-layers-0-35",
        "qwen3-8b-layers-0-35-graphs",
        "deepseek-v3-layers-0-7",
    ],
)
def test_profiles_of_a_gpu_are_accepted(layers: str) -> None:
    """Launching took a GPU's small microbatches 6 to 30 ms, by chance; the large ones are known."""
    points = profile_points(f"h200-{layers}")
    fit = fit_latency(points)
    assert fit.refused is None
    assert fit.latency is not None
    large = [point for point in points if point.work.new_tokens >= 1024]
    errors = relative_errors(fit.latency, large)
    assert np.median(errors) < 0.06
    assert np.quantile(errors, 0.9) < 0.18


@pytest.mark.parametrize("layers", ["qwen3-8b-layers-0-35-graphs", "deepseek-v3-layers-0-7"])
def test_decode_steps_as_graphs_are_known(layers: str) -> None:
    """They take half of what launching a chunk does; with a floor alone they were up to 2 x off."""
    points = profile_points(f"h200-{layers}")
    latency = fit_latency(points).latency
    assert latency is not None
    assert latency.rows_fixed_ms is not None
    assert relative_errors(latency, [each for each in points if each.work.num_rows]).max() < 0.15
