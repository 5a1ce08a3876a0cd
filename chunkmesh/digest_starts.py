"""Finds digests by their first bytes, as people write them. Pure."""

from __future__ import annotations

from chunkmesh.remains import Container

MIN_BYTES = 4
"""Shortest start that can be looked for."""


class DigestStarts:
    """Owner of a set of digests; each step costs the digests that share their first four bytes."""

    def __init__(self) -> None:
        self._digests: dict[bytes, tuple[bytes, ...]] = {}

    def add(self, digest: bytes) -> None:
        """Add a digest that is not there yet."""
        start = digest[:MIN_BYTES]
        self._digests[start] = (*self._digests.get(start, ()), digest)

    def remove(self, digest: bytes) -> None:
        """Remove a digest that is there."""
        start = digest[:MIN_BYTES]
        rest = tuple(other for other in self._digests[start] if other != digest)
        if rest:
            self._digests[start] = rest
        else:
            del self._digests[start]

    def find(self, start: bytes) -> tuple[bytes, ...]:
        """Return the digests that begin so; start has MIN_BYTES or more."""
        digests = self._digests.get(start[:MIN_BYTES], ())
        return tuple(digest for digest in digests if digest.startswith(start))

    def all(self) -> frozenset[bytes]:
        """Return all digests."""
        return frozenset(digest for digests in self._digests.values() for digest in digests)

    def clear(self) -> list[Container]:
        """Forget all digests; return what held them, which is the caller's now."""
        held: list[Container] = [self._digests]
        self._digests = {}
        return held
