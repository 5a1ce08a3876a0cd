"""Fits a stage's latency to profiled points, and says whether the fit may be planned with. Pure.

Errors are relative, since a chunk of 10 ms counts as much as one of 1 s. Points far off the rest
(a first call that compiled something) lose their weight, and points at the floor, where launching
takes longer than computing, say nothing about what grows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from scheduler.latency_model import TERMS, FloatArray, StageLatency, Work
from scheduler.non_negative import solve_non_negative

_NUM_STEPS = 16
_NUM_MILD_STEPS = 8
"""Steps in which far points only lose weight; then they are left out."""
_MILD_SCALES = 1.5
_FAR_SCALES = 5.0
_LEAST_SCALE = 0.002
"""Clocks and caches alone make times differ by this ratio."""
_FLOOR_MARGIN = 1.1
"""A point up to this ratio above the floor may stand on it."""
_FLOOR_GAIN = 0.9
"""A floor is believed if it brings the error down to this ratio."""
_MAX_FLOORS = 10
_CAPPED_ERROR = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPoint:
    """One measured microbatch."""

    work: Work
    ms: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitGate:
    """What a fit must reach before chunks are planned with it."""

    min_works: int = 8
    """Different works measured."""
    min_token_ratio: float = 4.0
    """Largest chunk over the smallest."""
    min_prefixes: int = 2
    """Different prefixes measured; without any, long prompts are a guess."""
    max_median_error: float = 0.10
    """Of points that the fit has not seen, relative."""
    max_p90_error: float = 0.35


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFit:
    """A fit and how good it is."""

    latency: StageLatency | None
    """Fit of all points; None if nothing could be fitted."""
    median_error: float
    """Relative error at points that the fit had not seen; inf if there was no fit."""
    p90_error: float
    refused: str | None
    """Why it must not be planned with, for people; None if accepted."""


DEFAULT_GATE = FitGate()


def fit_latency(points: Sequence[LatencyPoint], gate: FitGate = DEFAULT_GATE) -> LatencyFit:
    """Fit all points; judge by fits of three quarters of the works on the fourth."""
    sound = [point for point in points if math.isfinite(point.ms) and point.ms > 0]
    works = sorted({point.work for point in sound}, key=lambda work: work.features)
    refused = _too_little(works, gate)
    if refused:
        return LatencyFit(latency=None, median_error=math.inf, p90_error=math.inf, refused=refused)
    latency = fit_points(sound)
    errors = np.concatenate([_unseen_errors(sound, set(works[i::4])) for i in range(4)])
    median, p90 = (float(np.quantile(errors, share)) for share in (0.5, 0.9))
    return LatencyFit(
        latency=latency,
        median_error=median,
        p90_error=p90,
        refused=_too_bad(latency, median, p90, gate),
    )


def relative_errors(latency: StageLatency, points: Iterable[LatencyPoint]) -> FloatArray:
    """Return |predicted / measured - 1| for each point."""
    return np.array([abs(latency.microbatch_ms(p.work) / p.ms - 1) for p in points])


def fit_points(points: Sequence[LatencyPoint]) -> StageLatency:
    """Return the fit of some points, at least one, all times finite and > 0."""
    rows_NK = np.array([unmixed(point.work) for point in points])
    ms_N = np.array([point.ms for point in points])
    fits = [_fit_above(rows_NK, ms_N, floor_ms) for floor_ms in _floors_ms(ms_N)]
    without = fits[0]
    best = min(fits, key=lambda fit: fit.error)
    chosen = best if best.error < _FLOOR_GAIN * without.error else without
    return mixed(chosen.terms_K, floor_ms=chosen.floor_ms)


def unmixed(work: Work) -> FloatArray:
    """Return features whose terms are all independent and >= 0.

    A prefix token costs at most what a token does, so what a token costs more is one term and what
    both cost is another; in this order, so that without prefixes all is the token's.
    """
    fixed, prefix, tokens, *others = work.features
    return np.array([fixed, tokens, prefix + tokens, *others])


def mixed(terms_K: FloatArray, *, floor_ms: float) -> StageLatency:
    """Return the latency of terms of unmixed features."""
    fixed_ms, more, both, pair, row, row_token = terms_K.tolist()
    return StageLatency(
        floor_ms=floor_ms,
        fixed_ms=fixed_ms,
        ms_per_prefix_token=both,
        ms_per_token=both + more,
        ms_per_pair=pair,
        ms_per_row=row,
        ms_per_row_token=row_token,
    )


def terms_of(latency: StageLatency) -> FloatArray:
    """Return the terms of unmixed features that mixed would make this latency of."""
    fixed_ms, both, tokens, *others = (getattr(latency, name) for name in TERMS)
    return np.array([fixed_ms, tokens - both, both, *others])


@dataclasses.dataclass(frozen=True, slots=True)
class _FloorFit:
    floor_ms: float
    terms_K: FloatArray
    error: float


def _floors_ms(ms_N: FloatArray) -> list[float]:
    """Return floors to try: none, and the medians of the k smallest times."""
    sorted_ms = np.sort(ms_N)
    counts = np.unique(np.geomspace(2, max(len(ms_N) / 2, 2), _MAX_FLOORS).astype(int))
    return [0.0, *(float(np.median(sorted_ms[:count])) for count in counts)]


def _fit_above(rows_NK: FloatArray, ms_N: FloatArray, floor_ms: float) -> _FloorFit:
    """Fit what grows beyond a floor, by re-weighting."""
    weight_N = np.ones(len(ms_N))
    size_N = ms_N
    terms_K = np.zeros(rows_NK.shape[1])
    for step in range(_NUM_STEPS):
        scaled_NK = rows_NK * (np.sqrt(weight_N) / size_N)[:, None]
        target_N = ms_N * np.sqrt(weight_N) / size_N
        terms_K = solve_non_negative(scaled_NK.T @ scaled_NK, scaled_NK.T @ target_N)
        grown_N = rows_NK @ terms_K
        size_N = np.maximum(ms_N, grown_N)
        error_N = np.abs(grown_N - ms_N) / size_N
        explains_N = (grown_N < floor_ms) & (ms_N < floor_ms * _FLOOR_MARGIN)
        weight_N = np.where(explains_N, 0.0, _weights(error_N, explains_N, step))
    final_N = np.maximum(grown_N, floor_ms)
    error_N = np.abs(final_N - ms_N) / np.maximum(final_N, ms_N)
    return _FloorFit(floor_ms, terms_K, float(np.minimum(error_N, _CAPPED_ERROR).sum()))


def _weights(error_N: FloatArray, is_left_out_N: np.ndarray, step: int) -> FloatArray:
    """Return less weight for points far off the rest, and none in the last steps."""
    counted = error_N[~is_left_out_N]
    scale = max(1.4826 * float(np.median(counted)) if len(counted) else 0.0, _LEAST_SCALE)
    if step < _NUM_MILD_STEPS:
        return np.minimum(1.0, _MILD_SCALES * scale / np.maximum(error_N, 1e-12))
    return np.where(error_N > _FAR_SCALES * scale, 0.0, 1.0)


def _unseen_errors(points: Sequence[LatencyPoint], held_out: set[Work]) -> FloatArray:
    """Return the errors at some works of the fit of all others."""
    fit = fit_points([point for point in points if point.work not in held_out])
    return relative_errors(fit, (point for point in points if point.work in held_out))


def _too_little(works: Sequence[Work], gate: FitGate) -> str | None:
    """Say why these works cannot carry a fit."""
    if len(works) < gate.min_works:
        return f"{len(works)} different points were measured, at least {gate.min_works} are needed"
    chunks = [work for work in works if work.new_tokens]
    tokens = [work.new_tokens for work in chunks]
    ratio = max(tokens) / min(tokens) if tokens else 0.0
    if ratio < gate.min_token_ratio:
        return (
            f"the largest chunk measured is {ratio:.1f} times the smallest,"
            f" at least {gate.min_token_ratio:.1f} times are needed"
        )
    num_prefixes = len({work.prefix_tokens for work in chunks})
    if num_prefixes < gate.min_prefixes:
        return (
            f"chunks were measured behind {num_prefixes} different prefixes,"
            f" at least {gate.min_prefixes} are needed"
        )
    return None


def _too_bad(latency: StageLatency, median: float, p90: float, gate: FitGate) -> str | None:
    """Say why a fit must not be planned with."""
    if latency.ms_per_token == 0 and latency.ms_per_pair == 0:
        return "measured times do not grow with the chunk"
    for name, error, limit in (
        ("median", median, gate.max_median_error),
        ("90th percentile", p90, gate.max_p90_error),
    ):
        if error > limit:
            return f"{name} error at unseen points is {error:.1%}, above the limit of {limit:.0%}"
    return None
