"""Small numbers for the routes that stand, to name them in metrics. Pure.

Epochs never come again, so that a label of them would make new series for ever. A number is that of
one route while it stands; then the next route gets it.
"""

from __future__ import annotations

from collections.abc import Collection


class RouteNumbers:
    """Owner of who has which number."""

    def __init__(self) -> None:
        """Begin with all numbers free."""
        self._numbers: dict[int, int] = {}
        """By epoch."""

    def renew(self, epochs: Collection[int]) -> dict[int, int]:
        """Return the number of each epoch that stands; new ones get the lowest that are free."""
        kept = {epoch: self._numbers[epoch] for epoch in epochs if epoch in self._numbers}
        for epoch in epochs:
            if epoch not in kept:
                taken = set(kept.values())
                kept[epoch] = next(n for n in range(len(taken) + 1) if n not in taken)
        self._numbers = kept
        return dict(kept)
