"""Least squares with no negative solution, for a handful of unknowns. Pure.

Works on the normal equations, so that what is fitted may be a list of points or a running sum.
Source: Lawson and Hanson, Solving Least Squares Problems, https://doi.org/10.1137/1.9781611971217
"""

from __future__ import annotations

import numpy as np

from scheduler.latency_model import FloatArray

_TOLERANCE = 1e-10
"""Of a slope that still counts as down, in units of the right side."""


def solve_non_negative(gram_KK: FloatArray, moment_K: FloatArray) -> FloatArray:
    """Return x >= 0, [K], with the least x'Gx - 2m'x.

    Args:
        gram_KK: sum of w * row * row', symmetric, positive semidefinite; may be singular.
        moment_K: sum of w * row * value.
    """
    scale_K = np.sqrt(np.diag(gram_KK))
    scale_K = np.where(scale_K > 0, scale_K, 1.0)
    gram_KK = gram_KK / np.outer(scale_K, scale_K)
    moment_K = moment_K / scale_K
    num = len(moment_K)
    x_K = np.zeros(num)
    is_free_K = np.zeros(num, dtype=bool)
    least_slope = _TOLERANCE * max(float(np.abs(moment_K).max()), 1e-300)
    for _ in range(3 * num):
        slope_K = np.where(is_free_K, -np.inf, moment_K - gram_KK @ x_K)
        steepest = int(slope_K.argmax())
        if slope_K[steepest] <= least_slope:
            break
        is_free_K[steepest] = True
        x_K = _descend(gram_KK, moment_K, x_K, is_free_K)
    return x_K / scale_K


def _descend(
    gram_KK: FloatArray, moment_K: FloatArray, x_K: FloatArray, is_free_K: np.ndarray
) -> FloatArray:
    """Go to the least in the free unknowns; fix those at 0 that the way there would cross."""
    while True:
        target_K = np.zeros(len(x_K))
        free = np.flatnonzero(is_free_K)
        target_K[free] = np.linalg.lstsq(gram_KK[np.ix_(free, free)], moment_K[free], rcond=1e-13)[
            0
        ]
        crossing = free[target_K[free] <= 0]
        if not len(crossing):
            return target_K
        step = float((x_K[crossing] / (x_K[crossing] - target_K[crossing] + 1e-300)).min())
        x_K = x_K + step * (target_K - x_K)
        is_free_K &= x_K > _TOLERANCE * max(float(x_K.max()), 1e-300)
        x_K = np.where(is_free_K, x_K, 0.0)
        if not is_free_K.any():
            return x_K
