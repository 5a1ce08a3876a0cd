"""Out of which namespace a page is, from what was learned of the pages above it. Pure.

A page's record tells the namespace of its model without any salt, so that a worker need not know
salts. The one that its digest chain begins with stands in the record of the first page, as parent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from chunkmesh.page_record import PageRecord
from chunkmesh.stored_page import StoredPage


class Families:
    """Owner of what is known of namespaces, and of pages whose parent has not come yet."""

    def __init__(self) -> None:
        self._namespaces: dict[bytes, bytes] = {}
        """Of pages that are known."""
        self._waiting: dict[bytes, list[StoredPage]] = {}
        """Pages by their parent."""

    @property
    def num_waiting(self) -> int:
        """Pages whose parent has not come; no request can use them without it."""
        return sum(map(len, self._waiting.values()))

    def learn(self, digest: bytes, namespace: bytes) -> None:
        """Take note of a page."""
        self._namespaces[digest] = namespace

    def namespace(self, record: PageRecord) -> bytes | None:
        """Return the namespace of a page; None if that of its parent is not known."""
        return record.parent if record.page_index == 0 else self._namespaces.get(record.parent)

    def placed(self, pages: Iterable[StoredPage]) -> list[StoredPage]:
        """Return the pages that can be placed now, parents before children.

        Their records tell the right namespace; pages without a record come as they are.
        """
        placed: list[StoredPage] = []
        pending = list(pages)
        while pending:
            page = pending.pop()
            if page.record is None:
                placed.append(page)
                continue
            namespace = self.namespace(page.record)
            if namespace is None:
                self._waiting.setdefault(page.record.parent, []).append(page)
            else:
                self.learn(page.digest, namespace)
                placed.append(_in_namespace(page, page.record, namespace))
                pending += self._waiting.pop(page.digest, [])
        return placed


def _in_namespace(page: StoredPage, record: PageRecord, namespace: bytes) -> StoredPage:
    if record.format.namespace == namespace:
        return page
    form = dataclasses.replace(record.format, namespace=namespace)
    return dataclasses.replace(page, record=dataclasses.replace(record, format=form))
