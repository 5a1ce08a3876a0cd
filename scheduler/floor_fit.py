"""Fits times that grow with features and never fall below a floor. Pure.

At the floor, where launching takes longer than computing, points say nothing about what grows.
Decode rows alone launch other operations than chunks do, and may have a fixed time of their own in
place of both. Points far off the rest (a first call that compiled something) lose their weight.

Shapes: N points, K features.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from scheduler.latency_model import FloatArray
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
_APART_GAIN = 0.97
"""A fixed time of decode rows' own is believed if it brings the error down to this ratio."""
_MAX_FLOORS = 10
_CAPPED_ERROR = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class FloorFit:
    """What was found, and how far off it is."""

    terms_K: FloatArray
    error: float
    floor_ms: float = 0.0
    rows_fixed_ms: float | None = None


def fit_floors(rows_NK: FloatArray, ms_N: FloatArray, is_rows_N: npt.NDArray[np.bool_]) -> FloorFit:
    """Return the best fit; feature 0 is the fixed one, is_rows_N: decode rows alone."""
    whole = _with_floor(rows_NK, ms_N)
    if not 0 < is_rows_N.sum() < len(ms_N):
        return whole
    apart = _with_rows_apart(rows_NK, ms_N, is_rows_N)
    return apart if apart.error < _APART_GAIN * whole.error else whole


def _with_floor(rows_NK: FloatArray, ms_N: FloatArray) -> FloorFit:
    """Return the fit of some points with one floor, or with none if that is no worse."""
    fits = [
        dataclasses.replace(
            _fit_above(rows_NK, ms_N, np.full(len(ms_N), floor_ms)), floor_ms=floor_ms
        )
        for floor_ms in _floors_ms(ms_N)
    ]
    best = min(fits, key=lambda fit: fit.error)
    return best if best.error < _FLOOR_GAIN * fits[0].error else fits[0]


def _with_rows_apart(
    rows_NK: FloatArray, ms_N: FloatArray, is_rows_N: npt.NDArray[np.bool_]
) -> FloorFit:
    """Return the fit in which decode rows alone have a fixed time of their own, and no floor."""
    floor_ms = _with_floor(rows_NK[~is_rows_N], ms_N[~is_rows_N]).floor_ms
    apart_NK = np.column_stack([rows_NK, rows_NK[:, 0] * is_rows_N])
    apart_NK[is_rows_N, 0] = 0.0
    fit = _fit_above(apart_NK, ms_N, np.where(is_rows_N, 0.0, floor_ms))
    *terms, rows_fixed_ms = fit.terms_K
    return FloorFit(
        np.array(terms), fit.error, floor_ms=floor_ms, rows_fixed_ms=float(rows_fixed_ms)
    )


def _floors_ms(ms_N: FloatArray) -> list[float]:
    """Return floors to try: none, and the medians of the k smallest times."""
    sorted_ms = np.sort(ms_N)
    counts = np.unique(np.geomspace(2, max(len(ms_N) / 2, 2), _MAX_FLOORS).astype(int))
    return [0.0, *(float(np.median(sorted_ms[:count])) for count in counts)]


def _fit_above(rows_NK: FloatArray, ms_N: FloatArray, floor_N: FloatArray) -> FloorFit:
    """Fit what grows beyond each point's floor, by re-weighting."""
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
        explains_N = (grown_N < floor_N) & (ms_N < floor_N * _FLOOR_MARGIN)
        weight_N = np.where(explains_N, 0.0, _weights(error_N, explains_N, step))
    final_N = np.maximum(grown_N, floor_N)
    error_N = np.abs(final_N - ms_N) / np.maximum(final_N, ms_N)
    return FloorFit(terms_K, float(np.minimum(error_N, _CAPPED_ERROR).sum()))


def _weights(error_N: FloatArray, is_left_out_N: npt.NDArray[np.bool_], step: int) -> FloatArray:
    """Return less weight for points far off the rest, and none in the last steps."""
    counted = error_N[~is_left_out_N]
    scale = max(1.4826 * float(np.median(counted)) if len(counted) else 0.0, _LEAST_SCALE)
    if step < _NUM_MILD_STEPS:
        return np.minimum(1.0, _MILD_SCALES * scale / np.maximum(error_N, 1e-12))
    return np.where(error_N > _FAR_SCALES * scale, 0.0, 1.0)
