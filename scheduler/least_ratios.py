"""The least ratio of all sizes between two, found at once. Pure.

A table has the least of 1, 2, 4 and so on cells from each; two entries cover any interval.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler.size_ratios import SizeRatios

_FloatArray = npt.NDArray[np.float64]


class LeastRatios:
    """Of sizes of whole cells."""

    def __init__(self, ratios: SizeRatios, cell_tokens: int, max_tokens: int) -> None:
        """Look at sizes up to max_tokens; longer ones are as the longest, or as twice known."""
        furthest = min(max_tokens, 2 * ratios.tokens[-1]) // cell_tokens + 1
        sizes = cell_tokens * np.arange(1, furthest + 1, dtype=np.float64)
        levels = [ratios.of_sizes(sizes)]
        step = 1
        while 2 * step <= furthest:
            level = levels[-1].copy()
            level[:-step] = np.minimum(level[:-step], levels[-1][step:])
            levels.append(level)
            step *= 2
        self._levels = np.stack(levels)
        self._cell_tokens = cell_tokens
        self.least = min(ratios.ratios)
        """No size has less, whole cells or not."""
        self.most = ratios.most
        """Nor more."""

    def between(self, least: _FloatArray, greatest: _FloatArray) -> _FloatArray:
        """Return the least ratio of sizes in [least, greatest], of one shape, >= 1 cell."""
        last = self._levels.shape[1] - 1
        low = np.minimum(least / self._cell_tokens, last + 1).astype(int) - 1
        high = np.minimum(greatest / self._cell_tokens, last + 1).astype(int) - 1
        level = np.log2(high - low + 1).astype(int)
        found: _FloatArray = np.minimum(
            self._levels[level, low], self._levels[level, high - (1 << level) + 1]
        )
        return found
