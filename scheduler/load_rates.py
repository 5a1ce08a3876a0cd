"""How fast the stages of a route load pages: what was measured, and what is believed before. Pure.

A load takes a fixed time and one for each byte: a line through the stage's loads by least squares.
Older ones count less, and beside them stand two loads that nobody measured (the prior). The slowest
stage counts. What was measured long ago is forgotten: else a store that was slow once would never
be tried again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PRIOR_FIXED_S = 0.005
PRIOR_BYTES_PER_S = 256e6
_PRIOR_BYTES = 16e6
"""Of the larger one of the two loads of a prior."""
_PRIOR_WEIGHT = 0.1
_KEEP = 0.8
"""Weight of what was measured before, at each new load."""
_FORGET_S = 60.0


def _moments(num_bytes: float, took_s: float) -> npt.NDArray[np.float64]:
    """Return what a line through (bytes, seconds) is made of: n, x, xx, y and xy."""
    return np.array([1.0, num_bytes, num_bytes**2, took_s, num_bytes * took_s])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is believed of loads before one was measured."""

    fixed_s: float
    bytes_per_s: float
    moments: npt.NDArray[np.float64] = dataclasses.field(init=False, compare=False)
    """Of two loads, weighted."""

    def __post_init__(self) -> None:
        large_s = self.fixed_s + _PRIOR_BYTES / self.bytes_per_s
        loads = _moments(0.0, self.fixed_s) + _moments(_PRIOR_BYTES, large_s)
        object.__setattr__(self, "moments", _PRIOR_WEIGHT * loads)


REDIS_PRIOR = Prior(fixed_s=PRIOR_FIXED_S, bytes_per_s=PRIOR_BYTES_PER_S)
HOST_PRIOR = Prior(fixed_s=0.001, bytes_per_s=2e9)
"""Of copies from host memory, on a device that shares it or over a narrow bus."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Stage:
    """What one stage has measured."""

    page_bytes: int
    prior: Prior
    moments: npt.NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.zeros(5))
    """Weighted sums over its loads, without the prior."""
    measured_s: float = 0.0
    """When the last one ended."""
    bytes_per_s: float = 0.0
    """Mean of its loads, the fixed time included; 0 before the first."""

    def line(self, now_s: float) -> tuple[float, float]:
        """Return the fixed time, >= 0, and the time of a byte, > 0."""
        is_fresh = now_s - self.measured_s < _FORGET_S
        prior = self.prior.moments
        n, x, xx, y, xy = (prior + self.moments if is_fresh else prior).tolist()
        per_byte_s = (n * xy - x * y) / (n * xx - x * x)
        fixed_s = (y - per_byte_s * x) / n
        if fixed_s < 0:
            return 0.0, xy / xx
        if per_byte_s <= 0:
            return y / n, 1 / self.prior.bytes_per_s
        return fixed_s, per_byte_s


class LoadRates:
    """The stages of one route."""

    def __init__(self, page_bytes: Sequence[int], prior: Prior = REDIS_PRIOR) -> None:
        """Begin with the prior; page_bytes is what a page takes on each stage, 0 if unknown."""
        self._stages = [_Stage(page_bytes=max(1, each), prior=prior) for each in page_bytes]

    @property
    def bytes_per_s(self) -> tuple[float, ...]:
        """What each stage has measured; 0 before the first load."""
        return tuple(stage.bytes_per_s for stage in self._stages)

    def measured(self, stage: int, *, num_bytes: int, took_s: float, now_s: float) -> None:
        """Take what one stage says of a load; nothing if it has read nothing."""
        if not num_bytes or took_s <= 0:
            return
        each = self._stages[stage]
        each.moments = _KEEP * each.moments + _moments(num_bytes, took_s)
        each.measured_s = now_s
        _, num_mean_bytes, _, mean_s, _ = each.moments.tolist()
        each.bytes_per_s = num_mean_bytes / mean_s

    def load_s(self, num_pages: int, now_s: float) -> float:
        """Return how long the slowest stage takes to load so many pages."""
        return max(
            fixed_s + num_pages * stage.page_bytes * per_byte_s
            for stage in self._stages
            for fixed_s, per_byte_s in [stage.line(now_s)]
        )

    def pages_within(self, timeout_s: float, now_s: float) -> int:
        """Return how many pages every stage can load in a time."""
        return min(
            max(0, int((timeout_s - fixed_s) / (stage.page_bytes * per_byte_s)))
            for stage in self._stages
            for fixed_s, per_byte_s in [stage.line(now_s)]
        )
