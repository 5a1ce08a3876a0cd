"""Everything that lives and dies with the workers of one route: pages, rows, window, loads. Pure.

The engine decides what happens to a request; a route does it and says what the stages are told.
"""

from __future__ import annotations

import heapq

from chunkmesh.errors import InvariantViolated
from scheduler.actions import (
    Action,
    ReleaseLease,
    SendCancelLoad,
    SendCommitLoad,
    SendMicrobatch,
    SendRelease,
)
from scheduler.admission import pages_needed
from scheduler.batching import describe, next_parts
from scheduler.chunking import ChunkPlan, ChunkStrategy
from scheduler.decode_groups import DecodeGroups
from scheduler.engine_config import EngineConfig
from scheduler.events import RouteFormed
from scheduler.loads import LoadEnd, Loads
from scheduler.pages import PageAllocator
from scheduler.pipeline import Pipeline
from scheduler.request import Part, Request, RequestState
from scheduler.stores import Stores


class Route:
    """Where requests run in one epoch."""

    def __init__(self, formed: RouteFormed, config: EngineConfig, chunks: ChunkStrategy) -> None:
        """Begin with all pages and rows free."""
        num_stages = formed.num_stages
        self.epoch = formed.epoch
        self.num_stages = num_stages
        self.pages = PageAllocator(formed.num_pages)
        self.pipeline = Pipeline(num_stages=num_stages, window=config.window(num_stages))
        self.groups = DecodeGroups(config.num_decode_groups(num_stages))
        self.loads = Loads(num_stages=num_stages, timeout_s=config.load_timeout_s)
        self.stores = Stores(
            pages=self.pages,
            num_stages=num_stages,
            page_tokens=config.page_tokens,
            max_outstanding=config.max_outstanding_stores,
        )
        self.running: dict[Request, None] = {}
        """Requests with a row, in the order of admission, at most max_running_requests."""
        self._free_rows = list(range(config.max_running_requests))
        """A heap. A row is free once its SendRelease was given out: stages work in order."""
        self._config = config
        self._chunks = chunks

    def has_place(self, request: Request) -> bool:
        """Whether a row and all pages that a request can need are free."""
        need = pages_needed(request.spec, self._config)
        return bool(self._free_rows) and need <= self.pages.num_free

    def admit(self, request: Request, *, now_s: float) -> list[Action]:
        """Give a request its row and pages, and begin with its load or its first chunk."""
        request.row = heapq.heappop(self._free_rows)
        request.page_ids = self.pages.allocate(pages_needed(request.spec, self._config))
        self.running[request] = None
        if request.num_match_pages:
            request.move(RequestState.LOADING)
            return [self.loads.start(request, now_s=now_s)]
        self._start_prefill(request, hit_pages=0, now_s=now_s)
        return []

    def end_load(self, end: LoadEnd, *, now_s: float) -> list[Action]:
        """Use the pages that every stage has, and go on behind them."""
        request, num_pages = end.request, end.num_pages
        self._start_prefill(request, hit_pages=num_pages, now_s=now_s)
        if not num_pages:
            return [SendCancelLoad(load_id=end.load_id), *release_lease(request)]
        page_ids = request.page_ids[:num_pages]
        return [SendCommitLoad(load_id=end.load_id, page_ids=page_ids), *release_lease(request)]

    def next_microbatch(self) -> SendMicrobatch | None:
        """Plan and count one more microbatch, if there is room for it and work to do."""
        if not self.pipeline.has_room():
            return None
        budget_tokens = self._config.chunked_prefill_tokens
        parts = next_parts(self.groups, self.running, chunk_budget_tokens=budget_tokens)
        if not parts:
            return None
        for part in parts:
            part.request.num_in_flight += 1
        seq_no = self.pipeline.send(parts)
        page_tokens = self._config.page_tokens
        return describe(parts, epoch=self.epoch, seq_no=seq_no, page_tokens=page_tokens)

    def complete(self, parts: tuple[Part, ...]) -> list[Action]:
        """Store what a microbatch has filled; free the pages of ended requests it was last for."""
        store = self.stores.start(parts)
        for part in parts:
            part.request.num_in_flight -= 1
            self._free_if_done(part.request)
        return [] if store is None else [store]

    def leave(self, request: Request) -> list[Action]:
        """Take away the row of a FINISHED request; its pages follow when none is in flight."""
        actions: list[Action] = []
        load_id = self.loads.cancel(request)
        if load_id is not None:
            actions.append(SendCancelLoad(load_id=load_id))
        self.groups.remove(request)
        del self.running[request]
        row, request.row = request.row, None
        if row is None:
            raise InvariantViolated(f"{request.request_id} runs without a row")
        heapq.heappush(self._free_rows, row)
        if request.num_pages_named:
            actions.append(SendRelease(row=row))
        self._free_if_done(request)
        return actions

    def is_at_rest(self) -> bool:
        """Whether nothing runs, flies, loads or is stored, and every page is free."""
        self.pages.check_integrity()
        open_work = (self.running, self.pipeline.num_in_flight, len(self.loads), len(self.stores))
        return not any(open_work) and self.pages.num_free == self.pages.num_pages

    def _start_prefill(self, request: Request, *, hit_pages: int, now_s: float) -> None:
        """Cut what is left of the prompt."""
        start = hit_pages * self._config.page_tokens
        chunks = ChunkPlan(start=start, ends=self._chunks.cut(start, request.prompt_tokens))
        request.start_prefill(chunks, hit_pages=hit_pages, now_s=now_s)

    def _free_if_done(self, request: Request) -> None:
        """Give back the pages of a request that has ended and has nothing in flight."""
        if request.state is RequestState.FINISHED and not request.num_in_flight:
            self.pages.release(request.page_ids)
            request.page_ids = ()


def release_lease(request: Request) -> list[Action]:
    """Let go of a request's lease, if it has one."""
    lease_id = request.take_lease()
    return [] if lease_id is None else [ReleaseLease(lease_id=lease_id)]
