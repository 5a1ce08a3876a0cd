"""Keeps a stage's latency true while it works, from the times in its acknowledgements. Pure.

A running sum of normal equations that forgets, beside a fixed pull to the first fit. A machine that
has other work to do, or cools badly, is slower at everything, so each term by itself is pulled to
the first fit times one common ratio, which is fitted as well: work that is always alike says how
fast the machine is, and no more. Were terms pulled to the first fit alone, those that the work
depends on least would stay behind, and chunks would be cut as if a machine that is busy had cheaper
microbatches. Memory and time of an observation do not grow.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from scheduler.latency_fit import mixed, terms_of, unmixed_for
from scheduler.latency_model import FloatArray, StageLatency, Work
from scheduler.non_negative import solve_non_negative

_KEPT = 0.99
"""Of the sums at each observation: the last 100 or so count."""
_FIRST_FIT_OBSERVATIONS = 5
"""So many observations the first fit's terms are worth, to each other, for ever."""
_FIRST_RATIO_OBSERVATIONS = 0.2
"""And so many its size as a whole."""
_LEAST_LIMIT = 0.3
"""Relative error that is never an outlier."""
_LIMIT_SCALES = 4.0
_SCALE_STEP = 0.1
_FLOOR_STEP = 0.05
_FLOOR_MARGIN = 1.1
_DEEP = 0.5
"""Work that should take less than this ratio of the floor tells about the floor alone."""
_FEW_ROWS = 4
"""Fewer decode rows by themselves may take another path than chunks do, which no sum of terms
describes (profiles leave them out as well): above the floor they tell nothing about the terms, or a
chat would make what each chunk pays look cheap."""
_MIN_OBSERVATIONS = 16
_MIN_INTERVAL_S = 5.0
_MIN_CHANGE = 0.05
"""Relative change of a predicted time that is worth new plans."""
_MIN_GAIN = 0.9
"""A new fit must bring the squared error of what was observed to this ratio of the old one's."""


class LatencyRefit:
    """One stage's latency, refitted as it is observed; its owner is the only one to change it."""

    def __init__(
        self, first: StageLatency, *, max_chunk_tokens: int, max_prefix_tokens: int, max_rows: int
    ) -> None:
        """Start from a fit that holds for work up to these sizes, chunks >= 1, the others >= 0."""
        self.latency = first
        """The last that was worth planning with."""
        self.num_outliers = 0
        self._floor_ms = first.floor_ms
        self._works = _range_of(max_chunk_tokens, max_prefix_tokens, max_rows)
        rows_NK = np.array([self._row(work) for work in self._works])
        grown_N = np.array([_grown_ms(first, work) for work in self._works])
        rows_NK = rows_NK[grown_N > 0] / grown_N[grown_N > 0, None]
        share = _FIRST_FIT_OBSERVATIONS / max(len(rows_NK), 1)
        pull_K = share * (rows_NK * rows_NK).sum(axis=0)
        self._first_gram_RR = _pull_to_multiple(pull_K, terms_of(first))
        self._first_moment_R = np.zeros(len(pull_K) + 1)
        self._first_gram_RR[-1, -1] += _FIRST_RATIO_OBSERVATIONS
        self._first_moment_R[-1] = _FIRST_RATIO_OBSERVATIONS
        self._gram_KK = np.zeros((len(pull_K), len(pull_K)))
        self._moment_K = np.zeros(len(pull_K))
        self._square = 0.0
        self._scale = _LEAST_LIMIT / _LIMIT_SCALES
        """Running mean of the relative error."""
        self._num_new = 0
        self._last_s = -math.inf

    def observe(self, work: Work, ms: float) -> None:
        """Note a microbatch; drop what cannot be a time and what the terms do not describe."""
        above_ms = ms - self.latency.edge_ms
        if not (math.isfinite(above_ms) and above_ms > 0):
            return
        grown_ms = _grown_ms(self.latency, work)
        floor_ms = self._floor_of(work)
        is_deep = grown_ms < floor_ms * _DEEP
        is_near = grown_ms < floor_ms and above_ms < floor_ms * _FLOOR_MARGIN
        is_at_floor = is_deep or is_near
        is_few_rows = not work.new_tokens and work.num_rows < _FEW_ROWS
        if (is_few_rows and not is_at_floor) or self._is_outlier(work, above_ms):
            return
        self._num_new += 1
        if is_at_floor:
            self._floor_ms += _FLOOR_STEP * (above_ms - floor_ms)
            self._add(work, grown_ms, above_ms)
        else:
            self._add(work, above_ms, grown_ms or above_ms)

    def _add(self, work: Work, grown_ms: float, size_ms: float) -> None:
        """Count what grows with the work as grown_ms, errors being relative to size_ms.

        That is what was expected: relative to what was measured, quick microbatches would count
        more than slow ones, and a busy machine would look faster than its mean.
        At the floor nothing is known about it and the prediction counts, else those that noise
        lifts above the floor would have the only say.
        """
        row_K, target = self._row(work) / size_ms, grown_ms / size_ms
        self._gram_KK = _KEPT * self._gram_KK + np.outer(row_K, row_K)
        self._moment_K = _KEPT * self._moment_K + row_K * target
        self._square = _KEPT * self._square + target * target

    def refitted(self, now_s: float) -> StageLatency | None:
        """Return a fit that differs enough from the last one and explains more, or None."""
        if self._num_new < _MIN_OBSERVATIONS or now_s - self._last_s < _MIN_INTERVAL_S:
            return None
        self._num_new = 0
        self._last_s = now_s
        gram_RR, moment_R = self._first_gram_RR.copy(), self._first_moment_R.copy()
        gram_RR[:-1, :-1] += self._gram_KK
        moment_R[:-1] += self._moment_K
        terms_K = solve_non_negative(gram_RR, moment_R)[:-1]
        fitted = dataclasses.replace(
            mixed(terms_K, floor_ms=self._floor_ms),
            edge_ms=self.latency.edge_ms,
            size_ratios=self.latency.size_ratios,
        )
        if not self._error(fitted) < _MIN_GAIN * self._error(self.latency):
            fitted = dataclasses.replace(self.latency, floor_ms=self._floor_ms)
        if not self._differs(fitted):
            return None
        self.latency = fitted
        return fitted

    def _floor_of(self, work: Work) -> float:
        is_apart = self.latency.rows_fixed_ms is not None and not work.new_tokens
        return 0.0 if is_apart else self._floor_ms

    def _row(self, work: Work) -> FloatArray:
        """Return what the terms are multiplied with; ratios of sizes are those of the first fit."""
        return unmixed_for(self.latency, work)

    def _is_outlier(self, work: Work, above_ms: float) -> bool:
        """Compare with the prediction; errors that stay widen what is taken as an error."""
        predicted_ms = self.latency.microbatch_ms(work) - self.latency.edge_ms
        error = abs(above_ms - predicted_ms) / max(above_ms, predicted_ms)
        limit = max(_LIMIT_SCALES * self._scale, _LEAST_LIMIT)
        self._scale += _SCALE_STEP * (min(error, limit) - self._scale)
        if error <= limit:
            return False
        self.num_outliers += 1
        return True

    def _error(self, latency: StageLatency) -> float:
        """Return the squared relative error at what was observed."""
        terms_K = terms_of(latency)
        fitted = terms_K @ self._gram_KK @ terms_K - 2 * terms_K @ self._moment_K
        return max(float(fitted) + self._square, 0.0)

    def _differs(self, fitted: StageLatency) -> bool:
        """Say whether a time somewhere in the range differs enough to plan again."""
        return any(
            abs(fitted.microbatch_ms(work) / self.latency.microbatch_ms(work) - 1) > _MIN_CHANGE
            for work in self._works
            if self.latency.microbatch_ms(work) > 0
        )


def _pull_to_multiple(pull_K: FloatArray, terms_K: FloatArray) -> FloatArray:
    """Return the gram of sum pull * (x - ratio * term)**2; the unknowns R are x and the ratio."""
    along_K = -pull_K * terms_K
    gram_RR = np.diag([*pull_K, -(along_K @ terms_K)])
    gram_RR[:-1, -1] = gram_RR[-1, :-1] = along_K
    return gram_RR


def _range_of(max_chunk_tokens: int, max_prefix_tokens: int, max_rows: int) -> tuple[Work, ...]:
    """Return works spread over a range of sizes, the first so small that it takes the floor."""
    chunks = [
        Work.of_chunk(prefix, prefix + tokens)
        for tokens in sorted({max(max_chunk_tokens // ratio, 1) for ratio in (1, 2, 4, 8)})
        for prefix in sorted({max_prefix_tokens // ratio for ratio in (1, 4, 16)} | {0})
    ]
    rows = [
        Work.of_rows([max(length, 1)] * num_rows)
        for num_rows in sorted({max_rows // ratio for ratio in (1, 4)} - {0})
        for length in sorted({max_prefix_tokens // ratio for ratio in (1, 16)})
    ]
    return (Work.of_chunk(0, 1), *chunks, *rows)


def _grown_ms(latency: StageLatency, work: Work) -> float:
    """Return the time without edge and floor."""
    return float(terms_of(latency) @ unmixed_for(latency, work))
