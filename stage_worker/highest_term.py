"""The newest scheduler that a worker has obeyed: one of an earlier term is no longer in charge."""

from __future__ import annotations

from chunkmesh.errors import StaleEpoch


class HighestTerm:
    """Owns the highest term seen since the worker began."""

    def __init__(self) -> None:
        """Obey anybody first."""
        self._term = 0

    def check(self, epoch: int) -> None:
        """Take note of the term of an epoch, which is in its upper 32 bits.

        Raises:
            StaleEpoch: a scheduler of a later term has been obeyed before.
        """
        term = epoch >> 32
        if term < self._term:
            raise StaleEpoch(
                f"a scheduler of term {term} is no longer in charge: the mesh has one of term"
                f" {self._term}"
            )
        self._term = term
