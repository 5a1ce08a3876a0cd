"""How many bytes the cache may take: all together, and each namespace with a quota. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.prefix_index import PrefixIndex


class Bounds:
    """Owner of the budget and the quotas."""

    def __init__(self, budget_bytes: int) -> None:
        """Take the budget; 0 means none."""
        self.budget_bytes = budget_bytes
        self._quotas: dict[bytes, int] = {}
        """Most bytes by namespace, >= 1."""

    @property
    def quotas(self) -> Mapping[bytes, int]:
        """Most bytes of each namespace that has a limit; to look at only."""
        return self._quotas

    def set_quota(self, namespace: bytes, max_bytes: int) -> None:
        """Bound a namespace; 0 ends its limit."""
        if max_bytes:
            self._quotas[namespace] = max_bytes
        else:
            self._quotas.pop(namespace, None)

    def restore_quotas(self, quotas: Mapping[bytes, int]) -> None:
        """Replace all quotas."""
        self._quotas = {namespace: limit for namespace, limit in quotas.items() if limit}

    def evict(
        self, index: PrefixIndex, namespaces: Iterable[bytes], *, most_pages: int
    ) -> tuple[tuple[IndexedPage, ...], bool]:
        """Evict what is over the quotas of those namespaces, then what is over the budget.

        At most most_pages at once. Returns the victims in order, and whether there may be more.
        """
        victims: list[IndexedPage] = []
        for namespace in namespaces:
            excess = self.excess(index, namespace, self._quotas.get(namespace, 0))
            if excess and not index.gather_leaves(namespace, most_pages):
                return tuple(victims), True
            if excess:
                most = most_pages - len(victims)
                victims += index.evict(excess, namespace=namespace, most_pages=most)
        if self.budget_bytes:
            excess = index.num_bytes - self.budget_bytes
            victims += index.evict(excess, most_pages=most_pages - len(victims))
        return tuple(victims), len(victims) == most_pages

    def excess(self, index: PrefixIndex, namespace: bytes, max_bytes: int) -> int:
        """Return how many bytes a namespace is over a quota, 0 for none."""
        counts = index.namespaces.get(namespace)
        return max(0, counts.num_bytes - max_bytes) if counts is not None and max_bytes else 0
