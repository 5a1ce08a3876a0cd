"""The page table of one output: where its KV lies on its route, and who knows how much of it. Pure.

Valid on all stages. It is filled at admission, grows with the output, and is dropped when nothing
of the output is in flight any more.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True, kw_only=True)
class PageTable:
    """Owner of the pages that an output holds, but for those reserved for others of its request."""

    page_ids: list[int] = dataclasses.field(default_factory=list)
    """On the devices, in the order of positions; from admission on."""
    num_device_pages: int = 0
    """Leading pages that were on the devices at admission; 0 before."""
    num_partial_pages: int = 0
    """Pages behind these that some of the devices had, where they lie in the table."""
    lacking_stages: frozenset[int] = frozenset()
    """Those that had not; all pages among num_partial_pages count together."""
    host_ids: list[int] = dataclasses.field(default_factory=list)
    """Host pages of the leading pages, as long as there are pages."""
    num_kept: int = 0
    """Leading pages that later requests may find."""
    generation: int = 0
    """Of the pool at admission: what is computed is kept and stored only while that lasts."""
    num_shared: int = 0
    """Leading pages that were handed to several outputs together."""
    num_named: int = 0
    """Pages that the stages know; 0 until the first microbatch names the row."""

    def name(self, num_pages: int) -> tuple[int, ...]:
        """Return what the stages lack of the first num_pages; they know it from now on."""
        if num_pages <= self.num_named:
            return ()
        new_page_ids = tuple(self.page_ids[self.num_named : num_pages])
        self.num_named += len(new_page_ids)
        return new_page_ids

    def drop(self) -> list[int]:
        """Return all pages on the devices, for release, and forget them and who knew of them."""
        held, self.page_ids = self.page_ids, []
        self.num_device_pages = self.num_partial_pages = 0
        self.num_kept = self.num_shared = self.num_named = 0
        return held

    def drop_host(self) -> list[int]:
        """Return all host pages, for release, and forget them."""
        held, self.host_ids = self.host_ids, []
        return held
