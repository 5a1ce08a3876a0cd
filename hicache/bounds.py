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

    def evict(self, index: PrefixIndex, namespaces: Iterable[bytes]) -> tuple[IndexedPage, ...]:
        """Evict what is over the quotas of those namespaces, then what is over the budget.

        Returns the victims in order.
        """
        victims: list[IndexedPage] = []
        for namespace in namespaces:
            limit = self._quotas.get(namespace)
            counts = index.namespaces.get(namespace)
            if limit is not None and counts is not None and counts.num_bytes > limit:
                victims.extend(index.evict(counts.num_bytes - limit, namespace=namespace))
        if self.budget_bytes and index.num_bytes > self.budget_bytes:
            victims.extend(index.evict(index.num_bytes - self.budget_bytes))
        return tuple(victims)

    def over_quota(
        self, index: PrefixIndex, namespace: bytes, max_bytes: int
    ) -> tuple[IndexedPage, ...]:
        """Return the pages that such a quota would evict."""
        counts = index.namespaces.get(namespace)
        if not max_bytes or counts is None:
            return ()
        return index.evict(counts.num_bytes - max_bytes, namespace=namespace, dry_run=True)
