"""How much longer than its terms say a chunk takes, by its size. Pure values.

Kernels suit some numbers of rows better than others, by their tiles and by how they fill, heat and
feed the device; no sum of terms in tokens and pairs can say that. Measured by scheduler.size_fit.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

LEAST_RATIO = 0.8
MOST_RATIO = 1.25
"""What lies beyond is not a chunk's size but a wrong model, or a wrong clock."""
MAX_SIZES = 64
MAX_TOKENS = 1 << 24
"""Of a size; no microbatch is larger."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SizeRatios:
    """A ratio at some sizes and straight between them.

    Of sizes that are shorter or longer nothing is known, and so nothing good is believed: down to
    half the shortest and up to twice the longest a ratio below 1 goes to 1.
    """

    tokens: tuple[int, ...]
    """Sizes, in [1, MAX_TOKENS], ascending; between 1 and MAX_SIZES of them."""
    ratios: tuple[float, ...]
    """Of each, between LEAST_RATIO and MOST_RATIO: time over what the terms say."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.tokens) <= MAX_SIZES or len(self.ratios) != len(self.tokens):
            raise ValueError(
                f"{len(self.tokens)} sizes and {len(self.ratios)} ratios, must be equally many,"
                f" 1 to {MAX_SIZES}"
            )
        if any(a >= b for a, b in itertools.pairwise((0, *self.tokens))):
            raise ValueError(f"sizes are {self.tokens}, must be at least 1 and ascend")
        if self.tokens[-1] > MAX_TOKENS:
            raise ValueError(f"a size is {self.tokens[-1]}, must be at most {MAX_TOKENS}")
        for ratio in self.ratios:
            if not LEAST_RATIO <= ratio <= MOST_RATIO:
                raise ValueError(f"a ratio is {ratio}, must be in [{LEAST_RATIO}, {MOST_RATIO}]")

    @property
    def most(self) -> float:
        """The most of any size, at least 1."""
        return max(1.0, *self.ratios)

    def at(self, tokens: int) -> float:
        """Return the ratio of a size."""
        sizes, ratios = self._knots()
        right = bisect.bisect_right(sizes, tokens)
        if right == 0 or right == len(sizes):
            return ratios[max(right - 1, 0)]
        low, high = sizes[right - 1], sizes[right]
        share = (tokens - low) / (high - low)
        return ratios[right - 1] * (1 - share) + ratios[right] * share

    def of_sizes(self, tokens: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the ratios of sizes."""
        ratios: npt.NDArray[np.float64] = np.interp(tokens, *self._knots())
        return ratios

    def _knots(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return sizes and ratios, with those beyond which the ratio stays."""
        return (
            (self.tokens[0] / 2, *self.tokens, 2.0 * self.tokens[-1]),
            (max(self.ratios[0], 1.0), *self.ratios, max(self.ratios[-1], 1.0)),
        )

    @classmethod
    def mean(cls, weighted: Sequence[tuple[Self | None, float]]) -> Self | None:
        """Return the ratios of several layers together, by weights whose sum is > 0.

        None is 1 at all sizes.
        """
        if len({ratios for ratios, _ in weighted}) == 1:
            return weighted[0][0]
        tokens = sorted({size for ratios, _ in weighted if ratios for size in ratios.tokens})
        kept = tokens[:: -(-len(tokens) // MAX_SIZES)]
        sizes = np.array(kept, dtype=np.float64)
        total = sum(weight for _, weight in weighted)
        means = sum(
            weight / total * (ratios.of_sizes(sizes) if ratios else np.ones(len(sizes)))
            for ratios, weight in weighted
        )
        clipped = np.clip(means, LEAST_RATIO, MOST_RATIO).tolist()
        return cls(tokens=tuple(kept), ratios=tuple(clipped))
