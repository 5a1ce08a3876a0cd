"""All that lives and dies with the workers of one route: pages, rows, microbatches, loads. Pure.

The engine decides what happens to an output; a route does it and says what the stages are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from chunkmesh.errors import InvariantViolated
from scheduler.actions import (
    Action,
    InvalidatePages,
    SendCommitLoad,
    SendMicrobatch,
    SendSavePages,
    SendStore,
)
from scheduler.admission import Admission, pages_at_start
from scheduler.cache_counts import CacheCounts
from scheduler.chunking import ChunkStrategy
from scheduler.engine_config import EngineConfig
from scheduler.events import Acked, RouteFormed
from scheduler.filled_pages import FilledPages
from scheduler.fork import fork
from scheduler.given_chunks import given_ends
from scheduler.loads import Load, Loads
from scheduler.microbatches import Microbatches
from scheduler.observations import Observations
from scheduler.part import Part
from scheduler.prefill import Prefill
from scheduler.prefixes import Prefixes, release_lease
from scheduler.request import Request, RequestState
from scheduler.rows import Rows
from scheduler.shortage import Shortage
from scheduler.stored_checks import StoredChecks
from scheduler.stores import Stores
from scheduler.tiers import Tiers

_Order = TypeVar("_Order", bound=Action)


class Route:
    """Where outputs run in one epoch."""

    def __init__(
        self,
        formed: RouteFormed,
        config: EngineConfig,
        chunks: ChunkStrategy | None = None,
        tiers: Tiers | None = None,
        counts: CacheCounts | None = None,
        observations: Observations | None = None,
    ) -> None:
        """Begin with all pages and rows free; cut by chunks if given, whatever config asks for.

        tiers are of the same memory, with what the workers still hold; without, they hold nothing.
        counts are of what the caches are good for, observations what else operators want to see.
        """
        self.epoch = formed.epoch
        self.num_stages = formed.num_stages
        self.pool_ids = formed.pool_ids
        counts = counts or CacheCounts()
        self._observations = observations or Observations()
        self.tiers = tiers or Tiers(
            num_pages=formed.num_pages, num_host_pages=formed.num_host_pages
        )
        self.pages = self.tiers.device
        self.rows = Rows(config.max_running_requests, epoch=formed.epoch)
        self.microbatches = Microbatches(formed, config, self.rows, chunks, self._observations)
        self.pace = self.microbatches.pace
        self.stores = Stores(
            epoch=formed.epoch,
            tiers=self.tiers,
            page_bytes=formed.known_page_bytes,
            config=config,
            counts=counts,
        )
        self.checks = StoredChecks(self.stores)
        self.prefixes = Prefixes(config, self.tiers, formed, counts, self.checks)
        self._filled = FilledPages(config, self.tiers, epoch=formed.epoch)
        self.queue = Admission()
        """Those who wait for a row here."""
        self._running: dict[Request, None] = {}
        """Outputs with a row, in the order of admission."""
        self._shortage = Shortage(self.pages)
        self._config = config

    def outputs(self) -> list[Request]:
        """Return all that wait or run here."""
        return [*self._running, *self.queue]

    def has_place(self, request: Request) -> bool:
        """Whether rows and pages to begin are free, and a page for each running output beside."""
        return len(request.children) <= self.rows.num_free and self.prefixes.has_room(
            request,
            num_pages=pages_at_start(request, self._config),
            spare_pages=self.rows.num_taken,
        )

    def admit(self, request: Request, *, now_s: float) -> list[Action]:
        """Give an output its row and pages, and begin with its first chunk or wait for its load."""
        if request.is_new:
            self._observations.queue_s.append(now_s - request.arrived_s)
        page_ids = self.prefixes.take_pages(request, pages_at_start(request, self._config))
        rows = self.rows.take(len(request.children))
        request.take_place(rows, page_ids, page_tokens=self._config.page_tokens)
        self._running[request] = None
        gone = self.stores.gone()
        actions, hit_pages = self.prefixes.admitted(request, self.pace.latency, now_s)
        if hit_pages is None:
            request.move(RequestState.LOADING)
        else:
            self._start_prefill(request, hit_pages=hit_pages, now_s=now_s)
        return [*self._counted(gone), *self._counted(actions)]

    def end_load(self, load: Load, *, now_s: float) -> list[Action]:
        """Let an output go on, if it has its place, behind what its load has brought."""
        request, actions = load.request, release_lease(load.request)
        request.is_hit_damaged |= load.is_damaged
        if request.state is not RequestState.LOADING:
            return actions if load.expected else [*self.prefixes.use(load)[0], *actions]
        used, hit_pages = self.prefixes.use(load)
        self._start_prefill(request, hit_pages=hit_pages, now_s=now_s)
        return [*self._counted(used), *actions]

    def distrust(self, request: Request) -> list[Action]:
        """Let nobody use what the model has computed for an output that it failed on."""
        digests = self.stores.distrust(request)
        self.tiers.distrust(request.table.page_ids, request.digests)
        return [InvalidatePages(digests=digests)] if digests else []

    def fork(self, first: Request) -> list[Request]:
        """Make the other outputs of a prompt whose first tokens are there."""
        outputs = fork(first, self._config.page_tokens)
        for output in outputs:
            self.pages.pin(output.table.page_ids[: output.table.num_shared])
            self._running[output] = None
            self._shortage.add_leaving(output)
        return outputs

    def go_on(self, request: Request) -> None:
        """Let an output that has got a token decode the next one; it may have to wait for a page.

        It joins a decode group with its first token since admission.
        """
        if request.state is RequestState.LEAVING:
            return
        if request.state is RequestState.PREFILL:
            request.move(RequestState.DECODE)
            self.microbatches.begin_decode(request)
        self._shortage.add(request, page_tokens=self._config.page_tokens)

    def share_pages(self) -> tuple[list[Action], list[Request]]:
        """Give pages to those who wait for one; if there are too few, let the last leave.

        Return what that means for others, and who has left: WAITING, not yet in the queue.
        """
        actions: list[Action] = []
        left = self._depart(actions)
        self._shortage.give_pages()
        if self._shortage.stalled:
            for leaver in self._shortage.make_leave(self._running):
                self.microbatches.pause(leaver)
            left += self._depart(actions)
            self._shortage.give_pages()
        if gone := self.stores.gone():
            actions += self._counted(gone)
        return actions, left

    def next_microbatch(self, now_s: float) -> SendMicrobatch | None:
        """Plan and count one more microbatch, if there is room for it and work to do."""
        return self.microbatches.next(self._shortage.stalled, now_s)

    def ack(self, acked: Acked, now_s: float) -> tuple[Part, ...] | None:
        """Take an acknowledgement; return the microbatch, or None for a duplicate.

        Raises:
            InvariantViolated: it does not fit what was sent; nothing has changed.
        """
        parts = self.microbatches.ack(acked, now_s)
        self.prefixes.restored(acked, now_s)
        return parts

    def complete(self, parts: tuple[Part, ...]) -> list[Action]:
        """Store what a microbatch has filled; free the pages of ended outputs it was last for."""
        store = self.stores.start(parts)
        saves = self._filled.take(parts)
        for part in parts:
            part.request.num_in_flight -= 1
            self._free_if_gone(part.request)
        orders: list[Action] = [*([] if store is None else [store]), *self.stores.gone(), *saves]
        return [*self._counted(orders)] if orders else []

    def leave(self, request: Request) -> list[Action]:
        """Take away the row of an output that goes; its pages follow when none is in flight."""
        actions = self.prefixes.cancel(request)
        self.microbatches.leave(request)
        self._shortage.remove(request)
        del self._running[request]
        if request.row is None:
            raise InvariantViolated(f"{request.request_id} runs without a row")
        actions += self.rows.give_back(request.rows)
        request.row = None
        self._free_if_gone(request)
        return actions

    @property
    def loads(self) -> Loads:
        """Loads of outputs that wait, or wait for them."""
        return self.prefixes.loads

    def is_at_rest(self) -> bool:
        """Whether nothing runs, flies, loads or is stored, and every page and row is free."""
        self.tiers.check_integrity()
        rows, in_flight = self.rows.num_taken, self.microbatches.pipeline.num_in_flight
        open_work = (self._running, rows, in_flight, len(self.loads), len(self.stores))
        is_free = self.pages.num_free == self.pages.num_pages and not self.tiers.host.num_held
        return not any(open_work) and is_free

    def _depart(self, actions: list[Action]) -> list[Request]:
        """Let those who leave wait again, once nothing of them is in flight; return them."""
        left = self._shortage.departing()
        for request in left:
            actions += [*self.leave(request), *release_lease(request)]
            request.wait_again()
        return left

    def _start_prefill(self, request: Request, *, hit_pages: int, now_s: float) -> None:
        """Let what is left of the known tokens be computed."""
        start = hit_pages * self._config.page_tokens
        end, given = request.known_tokens, request.spec.chunk_tokens
        prefill = Prefill(start=start, end=end)
        if given:
            prefill.give(given_ends(given, start, end))
        self.microbatches.begin_prefill(request, prefill)
        request.start_prefill(prefill, hit_pages=hit_pages, now_s=now_s)
        self.stores.begin(request)

    def _counted(self, actions: Sequence[_Order]) -> Sequence[_Order]:
        """Count the pages that orders let the stages copy in their streams; return the orders."""
        for action in actions:
            match action:
                case SendCommitLoad(page_ids=page_ids) | SendSavePages(page_ids=page_ids):
                    self.microbatches.deadlines.copied(len(page_ids))
                case SendStore(pages=pages, in_turn=True):
                    self.microbatches.deadlines.copied(len(pages))
        return actions

    def _free_if_gone(self, request: Request) -> None:
        """Give back the pages of an output without a row that has nothing in flight."""
        if request.row is None and not request.num_in_flight:
            self.pages.release(request.drop_pages())
            self.tiers.host.release(request.table.drop_host())
