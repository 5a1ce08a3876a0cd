"""Fits by how much some sizes of chunks are off a latency's terms. Pure.

What a size has in common behind all prefixes is kept, as far as there are points to tell it from
noise; what only one point says is not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from scheduler.latency_model import FloatArray, StageLatency, Work
from scheduler.size_ratios import LEAST_RATIO, MAX_SIZES, MOST_RATIO, SizeRatios

_MIN_WORKS = 3
"""Different works of a size, which are different prefixes: fewer say nothing about the size."""
_PRIOR_WORKS = 4.0
"""So many works' say each size is taken to be what the terms tell.

As if sizes differed half as much as works of one size do by noise. From 0 to 7 it hardly matters to
how well a measured layer's unseen points are predicted.
"""
_FLOOR_MARGIN = 1.1
"""A time up to this ratio above the floor may stand on it."""
_LEAST_SHARE = 0.5
"""Of a time must be what grows with the chunk, or it tells more about what is fixed."""


def fit_size_ratios(
    latency: StageLatency, works: Sequence[Work], ms_N: FloatArray
) -> SizeRatios | None:
    """Return the ratios of a latency without any; None where too little was measured.

    Args:
        latency: what was fitted to these times.
        works: of which those that are one chunk count.
        ms_N: what they took, > 0.
    """
    logs: dict[int, dict[Work, list[float]]] = defaultdict(lambda: defaultdict(list))
    for work, ms in zip(works, ms_N.tolist(), strict=True):
        log = _log_ratio(latency, work, ms)
        if log is not None:
            logs[work.new_tokens][work].append(log)
    shrunk = {
        size: sum(float(np.median(own)) for own in of_works.values())
        / (len(of_works) + _PRIOR_WORKS)
        for size, of_works in sorted(logs.items())
        if len(of_works) >= _MIN_WORKS
    }
    if not 1 < len(shrunk) <= MAX_SIZES:
        return None
    ratios = np.clip(np.exp(list(shrunk.values())), LEAST_RATIO, MOST_RATIO)
    return SizeRatios(tokens=tuple(shrunk), ratios=tuple(ratios.tolist()))


def _log_ratio(latency: StageLatency, work: Work, ms: float) -> float | None:
    """Return by how much a chunk's own part of a time is off, or None if the time hardly tells."""
    if not work.new_tokens or work.num_rows:
        return None
    own_ms = latency.chunks_own_ms(work)
    grown_ms = latency.fixed_ms + latency.grows_ms(work)
    is_at_floor = grown_ms < latency.floor_ms * _FLOOR_MARGIN
    if is_at_floor or own_ms < _LEAST_SHARE * grown_ms:
        return None
    ratio = (ms - latency.edge_ms - grown_ms + own_ms) / own_ms
    return math.log(min(max(ratio, LEAST_RATIO), MOST_RATIO))
