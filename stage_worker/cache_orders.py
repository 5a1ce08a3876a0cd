"""What the scheduler orders about cached pages: loads, stores and copies. On the event loop only.

Reads and writes of the page store go to the I/O threads at once; copies of pages are put to the
compute thread in the order of the stream.
"""

from __future__ import annotations

import asyncio

from chunkmesh.v1 import stage_pb2 as pb
from stage_worker import codec
from stage_worker.compute import Compute, SavePages, UseLoad
from stage_worker.page_io import PageIO


class CacheOrders:
    """Owns the time limits of the loads of one stream."""

    def __init__(self, compute: Compute, page_io: PageIO) -> None:
        """Begin without loads."""
        self._compute = compute
        self._page_io = page_io
        self._load_timers: dict[int, asyncio.TimerHandle] = {}
        """Of loads with a time limit that is not over, by id; they may have ended."""

    def obey(self, kind: str, response: pb.AttachResponse) -> None:
        """Carry out an order that concerns cached pages; only copies of pages are in turn."""
        match kind:
            case "load":
                self._load(response.load)
            case "end_load":
                self._page_io.end(response.end_load.load_id)
            case "commit_load":
                commit = response.commit_load
                page_ids = tuple(commit.page_ids)
                self._compute.put(UseLoad(load_id=commit.load_id, page_ids=page_ids))
            case "cancel_load":
                self._page_io.cancel(response.cancel_load.load_id)
            case "save_pages":
                save = response.save_pages
                page_ids, host_ids = tuple(save.page_ids), tuple(save.host_ids)
                self._page_io.host.expect(save.digests, host_ids)
                self._compute.put(SavePages(page_ids=page_ids, host_ids=host_ids))
            case _:
                self._store(response.store)

    def _store(self, store: pb.Store) -> None:
        """Begin a store, in turn if nothing pins its pages."""
        pages = codec.store_pages_from(store)
        if store.in_turn:
            copies = self._page_io.prepare(store.store_id, pages, from_host=store.from_host)
            self._compute.put(copies)
        else:
            self._page_io.store(store.store_id, pages)

    def _load(self, load: pb.Load) -> None:
        """Begin a load, and see to its end if it has a time limit."""
        self._page_io.load(load.load_id, tuple(load.digests), tuple(load.host_ids))
        if load.timeout_ms:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(load.timeout_ms / 1000, self._end_load, load.load_id)
            self._load_timers[load.load_id] = timer

    def _end_load(self, load_id: int) -> None:
        """End a load whose time is over."""
        del self._load_timers[load_id]
        self._page_io.end(load_id)

    def forget_timers(self) -> None:
        """Drop all time limits: ids of loads come again in the next epoch."""
        for timer in self._load_timers.values():
            timer.cancel()
        self._load_timers.clear()
