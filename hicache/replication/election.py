"""Which replica evicts: who holds a key that ends by itself. Pure; time enters as now_s.

A replica evicts only while it is sure: a little shorter than the key lives, counted from before
it asked. Two that evict for a moment would cost pages, never wrong ones.
"""

from __future__ import annotations

TTL_S = 3.0
"""How long the key lives without renewal."""
_SURE_S = TTL_S - 0.5


class Election:
    """Owner of what one replica knows of the key."""

    def __init__(self, name: bytes) -> None:
        """Take a name that no other replica has, nor an earlier start of this one."""
        self.name = name
        self._until_s = 0.0

    @property
    def until_s(self) -> float:
        """Until when this replica evicts."""
        return self._until_s

    def holds(self, now_s: float) -> bool:
        """Whether this replica evicts."""
        return now_s < self._until_s

    def answered(self, holder: bytes | None, *, asked_s: float) -> None:
        """Take note of who holds the key after a try at asked_s; None if it cannot be set.

        Redis that is full refuses the key to everybody; then whoever asks may make room.
        """
        self._until_s = asked_s + _SURE_S if holder in {self.name, None} else 0.0

    def lost(self) -> None:
        """Evict no more."""
        self._until_s = 0.0
