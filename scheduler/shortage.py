"""Outputs of a route that wait for a page, and those that leave for want of pages. Pure.

Who has to leave says preemption.py.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.pages import PageAllocator
from scheduler.preemption import choose_leavers
from scheduler.request import Request, RequestState


class Shortage:
    """Owner of who waits and who leaves."""

    def __init__(self, pages: PageAllocator) -> None:
        """Begin with nobody."""
        self.stalled: dict[Request, None] = {}
        """Those in DECODE that lack the page of their next position."""
        self._leaving: dict[Request, None] = {}
        """Those in LEAVING."""
        self._pages = pages

    def add(self, request: Request, *, page_tokens: int) -> None:
        """Let an output that has a new token wait, if it has no page for it."""
        if request.known_tokens > len(request.table.page_ids) * page_tokens:
            self.stalled[request] = None

    def add_leaving(self, request: Request) -> None:
        """Take in an output, if it leaves: one that began beside another that did."""
        if request.state is RequestState.LEAVING:
            self._leaving[request] = None

    def remove(self, request: Request) -> None:
        """Forget an output that has no row any more."""
        self.stalled.pop(request, None)
        self._leaving.pop(request, None)

    def give_pages(self) -> None:
        """Give those who wait for a page theirs, in order of rank, as long as there are any."""
        first = sorted(self.stalled, key=lambda request: request.rank)
        for request in first[: self._pages.num_free]:
            request.table.page_ids.append(self._pages.allocate_behind(request.table.page_ids[-1]))
            del self.stalled[request]

    def make_leave(self, running: Collection[Request]) -> list[Request]:
        """Choose who has to leave; no more of them may be sent."""
        leavers = choose_leavers(running, self.stalled, num_pages=self._pages.num_pages)
        for request in leavers:
            request.move(RequestState.LEAVING)
            self.stalled.pop(request, None)
            self._leaving[request] = None
        return leavers

    def departing(self) -> list[Request]:
        """Return those who leave and have nothing in flight."""
        return [request for request in self._leaving if not request.num_in_flight]
