"""The index against a naive model under random histories."""

from __future__ import annotations

import dataclasses
import hashlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chunkmesh.coverage import Coverage
from chunkmesh.prefix_index import PageLock, PrefixIndex

_LAYERS = 3
_FULL = (1 << _LAYERS) - 1
_ROOT = hashlib.sha256(b"root").digest()
_PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple)


def _digest(path: tuple[int, ...]) -> bytes:
    return hashlib.sha256(bytes(path)).digest() if path else _ROOT


@dataclasses.dataclass
class _Known:
    layers: int = 0
    num_bytes: int = 0
    last_used: int = 0
    locks: int = 0


class PrefixIndexMachine(RuleBasedStateMachine):
    """Pages are named by their path from the root, so that relations are plain to see."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.known: dict[tuple[int, ...], _Known] = {}
        self.locks: list[tuple[PageLock, list[_Known]]] = []
        self.tick = 0

    def prefix(self, path: tuple[int, ...]) -> list[_Known]:
        """Return the visible pages that lead to path."""
        pages = []
        for end in range(1, len(path) + 1):
            page = self.known.get(path[:end])
            if page is None or page.layers != _FULL:
                break
            pages.append(page)
        return pages

    def evictable(self) -> dict[tuple[int, ...], _Known]:
        """Return unlocked pages with nothing below."""
        inner = {path[:-1] for path in self.known}
        return {
            path: page for path, page in self.known.items() if path not in inner and not page.locks
        }

    @rule(path=_PATHS, layers=st.integers(1, _FULL), layer_bytes=st.integers(0, 3))
    def cover(self, path: tuple[int, ...], layers: int, layer_bytes: int) -> None:
        """Store layers of a page."""
        page = self.known.setdefault(path, _Known())
        was_full = page.layers == _FULL
        page.num_bytes += (layers & ~page.layers).bit_count() * layer_bytes
        page.layers |= layers
        self.tick += 1
        page.last_used = self.tick
        coverage = Coverage(layers=layers, model_layers=_LAYERS, layer_bytes=layer_bytes)
        became = self.index.cover(_digest(path), _digest(path[:-1]), coverage)
        assert (page.layers == _FULL and not was_full) == became

    @rule(path=_PATHS)
    def match(self, path: tuple[int, ...]) -> None:
        """Use a prompt."""
        pages = self.prefix(path)
        self.tick += 1
        for page in pages:
            page.last_used = self.tick
        assert len(pages) == self.index.match(
            _digest(path[:end]) for end in range(1, len(path) + 1)
        )

    @rule(path=_PATHS)
    def lock(self, path: tuple[int, ...]) -> None:
        """Lease a prompt."""
        pages = self.prefix(path)
        for page in pages:
            page.locks += 1
        digests = [_digest(path[:end]) for end in range(1, len(pages) + 1)]
        self.locks.append((self.index.lock(digests), pages))

    @precondition(lambda self: self.locks)
    @rule(choice=st.integers(0, 100))
    def unlock(self, choice: int) -> None:
        """End a lease."""
        lock, pages = self.locks.pop(choice % len(self.locks))
        for page in pages:
            page.locks -= 1
        self.index.unlock(lock)

    @rule(path=_PATHS)
    def invalidate(self, path: tuple[int, ...]) -> None:
        """Lose a page."""
        below = [
            other
            for other in self.known
            if all(other[:end] in self.known for end in range(len(path), len(other)))
            and other[: len(path)] == path
        ]
        assert {_digest(other) for other in below} == set(self.index.invalidate(_digest(path)))
        for other in below:
            del self.known[other]

    @rule(num_bytes=st.integers(0, 20))
    def evict(self, num_bytes: int) -> None:
        """Make room: each victim is the oldest evictable page at its turn."""
        paths = {_digest(path): path for path in self.known}
        freed = 0
        for digest in self.index.evict(num_bytes):
            assert freed < num_bytes
            evictable = self.evictable()
            page = evictable[paths[digest]]
            assert page.last_used == min(other.last_used for other in evictable.values())
            freed += page.num_bytes
            del self.known[paths[digest]]
        assert freed >= num_bytes or not self.evictable()

    @invariant()
    def agrees(self) -> None:
        """Counts and pages are those of the model."""
        self.index.check_integrity()
        pages = self.known.values()
        assert sum(page.num_bytes for page in pages) == self.index.num_bytes
        assert sum(page.layers == _FULL for page in pages) == self.index.num_pages
        assert {_digest(path) for path in self.known} == self.index.digests()


TestPrefixIndexMachine = PrefixIndexMachine.TestCase
TestPrefixIndexMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
