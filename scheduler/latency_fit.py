"""Fits a stage's latency to profiled points, and says whether the fit may be planned with. Pure.

Errors are relative, since a chunk of 10 ms counts as much as one of 1 s. Points far off the rest
(a first call that compiled something) lose their weight, and points at the floor, where launching
takes longer than computing, say nothing about what grows. How sizes are off the terms is kept
beside them where that makes points better predicted that the fit has not seen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from scheduler.floor_fit import fit_floors
from scheduler.latency_model import TERMS, FloatArray, StageLatency, Work
from scheduler.size_fit import fit_size_ratios

_SIZES_GAIN = 0.95
"""Ratios of sizes are believed if they bring the mean error at unseen points down to this ratio."""
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
    splits = [_split(sound, set(works[i::4])) for i in range(4)]
    fits = [fit_points(seen) for seen, _ in splits]
    errors = _unseen_errors(fits, splits)
    sized = [_with_sizes(fit, seen) for fit, (seen, _) in zip(fits, splits, strict=True)]
    sized_errors = _unseen_errors(sized, splits)
    if _mean_error(sized_errors) < _SIZES_GAIN * _mean_error(errors):
        latency, errors = _with_sizes(latency, sound), sized_errors
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
    rows_NK = np.array([_unmixed(point.work) for point in points])
    ms_N = np.array([point.ms for point in points])
    fit = fit_floors(rows_NK, ms_N, np.array([not point.work.new_tokens for point in points]))
    own = () if fit.rows_fixed_ms is None else (fit.rows_fixed_ms,)
    return mixed(np.array([*fit.terms_K, *own]), floor_ms=fit.floor_ms)


def unmixed_for(latency: StageLatency, work: Work) -> FloatArray:
    """Return what terms_of this latency are multiplied with."""
    features_K = _unmixed(work, latency.ratio_at(work.new_tokens))
    if latency.rows_fixed_ms is None:
        return features_K
    fixed, *others = features_K
    return np.array([0.0, *others, fixed] if not work.new_tokens else [*features_K, 0.0])


def _unmixed(work: Work, ratio: float = 1.0) -> FloatArray:
    """Return features whose terms are all independent and >= 0.

    A prefix token costs at most what a token does, so what a token costs more is one term and what
    both cost is another; in this order, so that without prefixes all is the token's. The ratio is
    that of the work's size.
    """
    fixed, prefix, tokens, pairs, *rows = work.features
    return np.array([fixed, tokens * ratio, prefix + tokens * ratio, pairs * ratio, *rows])


def mixed(terms_K: FloatArray, *, floor_ms: float) -> StageLatency:
    """Return the latency of terms of unmixed features; one more is that of decode rows alone."""
    fixed_ms, more, both, pair, row, row_token, *rows_fixed_ms = terms_K.tolist()
    return StageLatency(
        floor_ms=floor_ms,
        fixed_ms=fixed_ms,
        ms_per_prefix_token=both,
        ms_per_token=both + more,
        ms_per_pair=pair,
        ms_per_row=row,
        ms_per_row_token=row_token,
        rows_fixed_ms=rows_fixed_ms[0] if rows_fixed_ms else None,
    )


def terms_of(latency: StageLatency) -> FloatArray:
    """Return the terms of unmixed features that mixed would make this latency of."""
    fixed_ms, both, tokens, *others = (getattr(latency, name) for name in TERMS)
    own = () if latency.rows_fixed_ms is None else (latency.rows_fixed_ms,)
    return np.array([fixed_ms, tokens - both, both, *others, *own])


_Split = tuple[list[LatencyPoint], list[LatencyPoint]]
"""Points that a fit sees, and those that it does not."""


def _with_sizes(latency: StageLatency, points: Sequence[LatencyPoint]) -> StageLatency:
    """Return the fit of some points with how much sizes are off its terms."""
    ratios = fit_size_ratios(
        latency, [point.work for point in points], np.array([point.ms for point in points])
    )
    return dataclasses.replace(latency, size_ratios=ratios)


def _split(points: Sequence[LatencyPoint], held_out: set[Work]) -> _Split:
    """Return the points of all other works, and those of some."""
    seen = [point for point in points if point.work not in held_out]
    return seen, [point for point in points if point.work in held_out]


def _unseen_errors(fits: Sequence[StageLatency], splits: Sequence[_Split]) -> FloatArray:
    """Return the errors of fits at the points that each has not seen."""
    pairs = zip(fits, splits, strict=True)
    return np.concatenate([relative_errors(fit, unseen) for fit, (_, unseen) in pairs])


def _mean_error(errors: FloatArray) -> float:
    """Return the mean, in which points far off the rest count no more than others."""
    return float(np.minimum(errors, _CAPPED_ERROR).mean())


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
