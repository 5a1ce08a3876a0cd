"""The newest scheduler that a worker has obeyed: one of an earlier term is no longer in charge."""

from __future__ import annotations

from chunkmesh.errors import StaleEpoch


class HighestTerm:
    """Owns the highest epoch seen since the worker began; its term is in the upper 32 bits."""

    def __init__(self) -> None:
        """Obey anybody first."""
        self.epoch = 0

    def check(self, epoch: int) -> None:
        """Take note of an epoch.

        Raises:
            StaleEpoch: a scheduler of a later term has been obeyed before.
        """
        term, highest = epoch >> 32, self.epoch >> 32
        if term < highest:
            raise StaleEpoch(
                f"a scheduler of term {term} is no longer in charge: the mesh has one of term"
                f" {highest}"
            )
        self.epoch = max(epoch, self.epoch)
