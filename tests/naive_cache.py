"""The prefix cache as its rules say it, without an index: a list of prefixes, searched each time.

A page is named by its path: namespace number, then the choice at each step. Slow and plain on
purpose; the real cache must agree with it after every step.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from hicache.doomed import WAIT_S
from hicache.eviction_policy import PolicyName
from hicache.leases import MAX_TTL_S

LAYERS = 3
FULL = (1 << LAYERS) - 1
NAMESPACES = (0, 1)

Path: TypeAlias = tuple[int, ...]


def digest(path: Path) -> bytes:
    """Return a page's digest; of a path of one step the namespace."""
    return hashlib.sha256(bytes(path)).digest()


def prefixes(path: Path) -> list[Path]:
    """Return the pages of a prompt."""
    return [path[:end] for end in range(2, len(path) + 1)]


@dataclasses.dataclass(eq=False)
class NaivePage:
    """What is known of a page."""

    priority: int
    layers: int = 0
    num_bytes: int = 0
    num_hits: int = 0
    last_used: int = 0
    used_s: float = 0.0


@dataclasses.dataclass
class NaiveLease:
    """Pages by identity: a page that went and came back is another one."""

    pages: list[tuple[int, NaivePage]]
    ends_s: float


class NaiveCache:
    """The rules."""

    def __init__(self, *, policy: PolicyName, budget_bytes: int) -> None:
        self.policy = policy
        self.budget_bytes = budget_bytes
        self.pages: dict[Path, NaivePage] = {}
        self.leases: dict[str, NaiveLease] = {}
        self.pins: dict[Path, float | None] = {}
        self.quotas: dict[int, int] = {}
        self.doomed: dict[Path, float] = {}
        self.hits = dict.fromkeys(NAMESPACES, 0)
        self.tick_no = 0

    def num_bytes(self, namespace: int | None = None) -> int:
        """Count the bytes of one namespace or all."""
        return sum(
            page.num_bytes for path, page in self.pages.items() if namespace in {None, path[0]}
        )

    def children(self, path: Path) -> list[Path]:
        """Return the known pages right below."""
        return [other for other in self.pages if other[:-1] == path]

    def below(self, path: Path) -> list[Path]:
        """Return a known page and what hangs below without a gap."""
        if path not in self.pages:
            return []
        return [path] + [other for child in self.children(path) for other in self.below(child)]

    def visible_prefix(self, path: Path) -> list[Path]:
        """Return the leading pages of a prompt with all layers."""
        return self._leading(path, lambda page: page.layers == FULL)

    def known_prefix(self, path: Path) -> list[Path]:
        """Return the leading known pages of a prompt."""
        return self._leading(path, lambda _page: True)

    def is_held(self, path: Path) -> bool:
        """Whether a lease or a pin holds a known page."""
        page = self.pages[path]
        leased = any(page is other for lease in self.leases.values() for _, other in lease.pages)
        return leased or path in self.pins

    def match(self, path: Path, now_s: float) -> list[Path]:
        """Use a prompt."""
        found = self.visible_prefix(path)
        self.tick_no += 1
        for prefix in found:
            page = self.pages[prefix]
            page.last_used, page.used_s = self.tick_no, now_s
            page.num_hits += 1
        self.hits[path[0]] += bool(found)
        return found

    def lease(self, lease_id: str, paths: Iterable[Path], ends_s: float) -> None:
        """Lease pages."""
        pages = [(path[0], self.pages[path]) for path in paths]
        self.leases[lease_id] = NaiveLease(pages=pages, ends_s=ends_s)

    def renew(self, lease_id: str, ttl_s: float, now_s: float) -> bool:
        """Return whether the lease still lives, and lives on."""
        lease = self.leases.get(lease_id)
        if lease is None or lease.ends_s <= now_s:
            return False
        lease.ends_s = now_s + min(ttl_s, MAX_TTL_S)
        return True

    def release(self, lease_id: str, now_s: float) -> None:
        """End a lease."""
        lease = self.leases.pop(lease_id, None)
        if lease is not None:
            self.keep_limits({namespace for namespace, _ in lease.pages}, now_s)

    def store(
        self, paths: Sequence[Path], layers: int, layer_bytes: int, *, priority: int, now_s: float
    ) -> set[Path]:
        """Store layers of pages; return those that became visible and stay."""
        self.end_by_time(now_s)
        recorded = [path for path in paths if path not in self.doomed]
        became = {path for path in recorded if self._cover(path, layers, layer_bytes, priority)}
        for path in recorded:
            self._touch(path, now_s)
        self._settle(recorded, now_s)
        return {path for path in became if path in self.pages and self.pages[path].layers == FULL}

    def find(self, path: Path, layers: int, layer_bytes: int, now_s: float) -> None:
        """Find a page in a scan: news of it, but no use."""
        if path not in self.doomed:
            is_new = path not in self.pages
            self._cover(path, layers, layer_bytes, 0)
            if is_new:
                self._touch(path, now_s)

    def settle(self, paths: Sequence[Path], now_s: float) -> None:
        """Keep the limits after pages were found."""
        self._settle([path for path in paths if path not in self.doomed], now_s)

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        self.end_by_time(now_s)
        self.keep_limits(set(self.quotas), now_s)

    def end_by_time(self, now_s: float) -> None:
        """End leases and pins whose time is over."""
        ended = [name for name, lease in self.leases.items() if lease.ends_s <= now_s]
        namespaces = {ns for name in ended for ns, _ in self.leases.pop(name).pages}
        self.keep_limits(namespaces, now_s)
        unpinned = [p for p, until in self.pins.items() if until is not None and until <= now_s]
        for path in unpinned:
            del self.pins[path]
        self.keep_limits({path[0] for path in unpinned if path in self.pages}, now_s)

    def invalidate(self, path: Path, now_s: float) -> int:
        """Lose a page and what is below."""
        broken = self.below(path)
        for other in broken:
            self._drop(other)
            self.doomed[other] = now_s
        return len(broken)

    def removable(self, chosen: Iterable[Path]) -> set[Path]:
        """Return the chosen pages that may go: unheld, and with all that is below."""
        going = {path for path in chosen if not self.is_held(path)}
        while stays := {path for path in going if not going.issuperset(self.children(path))}:
            going -= stays
        return going

    def remove(self, paths: Iterable[Path], now_s: float) -> None:
        """Doom pages."""
        for path in paths:
            self._drop(path)
            self.doomed[path] = now_s + WAIT_S

    def excess(self, namespace: int, max_bytes: int) -> int:
        """Return by how much a namespace would be over a quota."""
        return max(0, self.num_bytes(namespace) - max_bytes) if max_bytes else 0

    def keep_limits(self, namespaces: Iterable[int], now_s: float) -> None:
        """Evict what is over the quotas of those namespaces, then what is over the budget."""
        for namespace in namespaces:
            while self.excess(namespace, self.quotas.get(namespace, 0)):
                if not self._evict_one(namespace, now_s):
                    break
        while self.budget_bytes and self.num_bytes() > self.budget_bytes:
            if not self._evict_one(None, now_s):
                break

    def forget(self) -> None:
        """Lose everything but pins and quotas."""
        self.pages.clear()
        self.leases.clear()
        self.doomed.clear()
        self.hits = dict.fromkeys(NAMESPACES, 0)

    def _leading(self, path: Path, accept: Callable[[NaivePage], bool]) -> list[Path]:
        found = []
        for prefix in prefixes(path):
            if prefix not in self.pages or not accept(self.pages[prefix]):
                break
            found.append(prefix)
        return found

    def _cover(self, path: Path, layers: int, layer_bytes: int, priority: int) -> bool:
        page = self.pages.setdefault(path, NaivePage(priority=priority))
        was_full = page.layers == FULL
        page.num_bytes += (layers & ~page.layers).bit_count() * layer_bytes
        page.layers |= layers
        page.priority = max(page.priority, priority)
        return page.layers == FULL and not was_full

    def _touch(self, path: Path, now_s: float) -> None:
        self.tick_no += 1
        self.pages[path].last_used, self.pages[path].used_s = self.tick_no, now_s

    def _settle(self, recorded: Sequence[Path], now_s: float) -> None:
        namespaces = {path[0] for path in recorded}
        if self.policy == "lfu":
            self.lease("newcomers", recorded, 0.0)
            self.keep_limits(namespaces, now_s)
            del self.leases["newcomers"]
        self.keep_limits(namespaces, now_s)

    def _key(self, path: Path) -> tuple[int, ...]:
        page = self.pages[path]
        first = {"lru": 0, "lfu": page.num_hits, "priority": page.priority}[self.policy]
        return first, page.last_used

    def _evict_one(self, namespace: int | None, now_s: float) -> bool:
        going = [
            path
            for path in self.pages
            if namespace in {None, path[0]} and not self.children(path) and not self.is_held(path)
        ]
        if going:
            self.remove([min(going, key=self._key)], now_s)
        return bool(going)

    def _drop(self, path: Path) -> None:
        del self.pages[path]
        if not any(other[0] == path[0] for other in self.pages):
            self.hits[path[0]] = 0
