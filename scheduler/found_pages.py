"""How much of an output's prefix the workers of one route hold, and where. Pure.

Looked up anew each time, as pages come and go; nothing changes by that. Each tier holds whole
prefixes of its own; behind those, some stages' devices may hold pages that others lack.
"""

from __future__ import annotations

from scheduler.load_choice import Wanted
from scheduler.request import Request
from scheduler.tiers import Tiers


class FoundPages:
    """What is found of an output's leading pages; never the page of its last known token."""

    def __init__(self, tiers: Tiers, *, page_tokens: int) -> None:
        """Look into the tiers of one route."""
        self._page_tokens = page_tokens
        self._pages, self._host = tiers.device, tiers.host

    def num_pages(self, request: Request) -> int:
        """Count those that all workers hold in one of the tiers."""
        return max(self.on_devices(request), self.in_host(request))

    def on_devices(self, request: Request) -> int:
        """Count those that are on all devices."""
        num_pages = request.most_hit_pages(self._page_tokens)
        if not num_pages or not len(self._pages.cached):
            return 0
        request.page_digest(num_pages - 1, self._page_tokens)
        return self._pages.cached.count(request.digests, num_pages)

    def in_host(self, request: Request) -> int:
        """Count those that are in host memory everywhere."""
        num_pages = request.most_hit_pages(self._page_tokens)
        if not num_pages or not self._host.num_cached:
            return 0
        request.page_digest(num_pages - 1, self._page_tokens)
        return self._host.count(request.digests, num_pages)

    def wanted(self, request: Request) -> Wanted:
        """Return what an output could load now, behind the pages that are or were on the devices.

        An output with pages has a number of device pages for good.
        """
        has_place = request.row is not None
        first = request.table.num_device_pages if has_place else self.on_devices(request)
        in_host = self.in_host(request)
        pages = range(first, max(first, in_host, request.num_match_pages))
        return Wanted(pages=pages, num_host=max(0, in_host - first))

    def partial_run(self, request: Request, first: int) -> tuple[list[int], frozenset[int]]:
        """Return where pages from first on lie that some devices have, and which stages' lack any.

        Their digests are known.
        """
        most = request.most_hit_pages(self._page_tokens)
        return self._pages.cached.partial_run(request.digests[:most], first)

    def held_by_some(self, request: Request, pages: range) -> tuple[int, frozenset[int]]:
        """Count the first of pages that only some devices lack, and tell which.

        An output with pages has a number of them for good.
        """
        if request.row is not None:
            table = request.table
            num_held, lacking = table.num_partial_pages, table.lacking_stages
        else:
            partial, lacking = self.partial_run(request, pages.start)
            num_held = len(partial)
        return min(num_held, len(pages)), lacking
