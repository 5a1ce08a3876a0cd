"""All pins together, as Redis keeps them: also of pages that are not there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hicache.changes import Change, ChangeKind
from hicache.contents import CacheContents


class AllPins:
    """Reads and replaces the pins of the contents; nobody else may pin or unpin meanwhile."""

    def __init__(self, contents: CacheContents) -> None:
        self._contents = contents

    def all(self) -> list[tuple[bytes, float | None]]:
        """Return (digest, time at which it ends, None for never) of each pin."""
        return self._contents.pins.all()

    def restoring(self, pins: Mapping[bytes, float | None], *, now_s: float) -> Iterator[None]:
        """Replace all pins, one a step; nobody is told.

        Between two steps pages may come and go, and pins end whose time is over.
        """
        contents = self._contents
        for digest, _ in contents.pins.all():
            if digest not in pins:
                contents.pins.remove([digest])
                for page in contents.tree.known([digest]):
                    contents.index.pin(page, pinned=False)
            yield
        for digest, until_s in pins.items():
            if not contents.pins.has(digest, until_s):
                contents.pins.add([digest], until_s)
                contents.apply_pins(contents.tree.known([digest]))
            yield
        contents.keep_limits(contents.bounds.quotas, now_s=now_s)

    def end_waiting(self, digests: Iterable[bytes]) -> None:
        """End those of the pins whose pages are not there."""
        pins, tree = self._contents.pins, self._contents.tree
        waiting = [each for each in digests if each in pins and tree.get(each) is None]
        pins.remove(waiting)
        if waiting:
            change = Change(kind=ChangeKind.UNPINNED, namespace=None, digests=tuple(waiting))
            self._contents.tell(change)
