"""Everything that lives and dies with the workers of one route: pages, rows, window, loads. Pure.

The engine decides what happens to an output; a route does it and says what the stages are told.
"""

from __future__ import annotations

from chunkmesh.errors import InvariantViolated
from scheduler.actions import (
    Action,
    ReleaseLease,
    SendCancelLoad,
    SendCommitLoad,
    SendMicrobatch,
)
from scheduler.admission import pages_at_start
from scheduler.batching import describe, next_parts
from scheduler.budget import TokenBudget
from scheduler.chunk_choice import budget_for, choose
from scheduler.chunking import ChunkStrategy
from scheduler.decode_groups import DecodeGroups
from scheduler.engine_config import EngineConfig
from scheduler.events import Acked, Loaded, RouteFormed, Stored
from scheduler.fork import fork
from scheduler.given_chunks import given_ends
from scheduler.loads import LoadEnd, Loads
from scheduler.outlook import Outlook
from scheduler.pace import Pace
from scheduler.pages import PageAllocator
from scheduler.part import Part, work_of
from scheduler.pipeline import Pipeline
from scheduler.preemption import choose_leavers
from scheduler.prefill import Prefill
from scheduler.request import Request, RequestState
from scheduler.rows import Rows
from scheduler.stores import Stores


class Route:
    """Where outputs run in one epoch."""

    def __init__(
        self, formed: RouteFormed, config: EngineConfig, chunks: ChunkStrategy | None = None
    ) -> None:
        """Begin with all pages and rows free; cut by chunks if given, whatever config asks for."""
        num_stages = formed.num_stages
        self.epoch = formed.epoch
        self.num_stages = num_stages
        self.pages = PageAllocator(formed.num_pages)
        self.rows = Rows(config.max_running_requests)
        self.pipeline = Pipeline(num_stages=num_stages, window=config.window(num_stages))
        self.groups = DecodeGroups(
            config.num_decode_groups(num_stages),
            formed.latency,
            max_members=config.max_microbatch_requests,
        )
        self.loads = Loads(num_stages=num_stages, timeout_s=config.load_timeout_s)
        self.stores = Stores(
            pages=self.pages,
            num_stages=num_stages,
            page_tokens=config.page_tokens,
            max_outstanding=config.max_outstanding_stores,
        )
        self._running: dict[Request, None] = {}
        """Outputs with a row, in the order of admission."""
        self._stalled: dict[Request, None] = {}
        """Those in DECODE that lack the page of their next position."""
        self._leaving: dict[Request, None] = {}
        """Those in LEAVING."""
        self._config = config
        self.pace = Pace(formed, config)
        self.choice = choose(config, formed.latency)
        self._outlook = Outlook(
            window=config.window(num_stages), shorten_chunks=self.choice.strategy == "optimal"
        )
        if chunks is None:
            self._budget = budget_for(self.choice.strategy, config, formed.latency)
        else:
            self._budget = TokenBudget(chunks, config.chunked_prefill_tokens)

    def has_place(self, request: Request) -> bool:
        """Whether rows and pages to begin are free, and a page for each running output beside."""
        if len(request.children) > self.rows.num_free:
            return False
        return pages_at_start(request, self._config) + self.rows.num_taken <= self.pages.num_free

    def admit(self, request: Request, *, now_s: float) -> list[Action]:
        """Give an output its row and pages, and begin with its load or its first chunk."""
        page_ids = self.pages.allocate(pages_at_start(request, self._config))
        request.take_place(
            self.rows.take(len(request.children)), page_ids, page_tokens=self._config.page_tokens
        )
        self._running[request] = None
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
        page_ids = tuple(request.page_ids[:num_pages])
        return [SendCommitLoad(load_id=end.load_id, page_ids=page_ids), *release_lease(request)]

    def fork(self, first: Request) -> list[Request]:
        """Make the other outputs of a prompt whose first tokens are there."""
        outputs = fork(first, self._config.page_tokens)
        for output in outputs:
            self.pages.pin(output.page_ids[: output.num_shared_pages])
            self._running[output] = None
            if output.state is RequestState.LEAVING:
                self._leaving[output] = None
        return outputs

    def go_on(self, request: Request) -> None:
        """Let an output that has got a token decode the next one; it may have to wait for a page.

        It joins a decode group with its first token since admission.
        """
        if request.state is RequestState.LEAVING:
            return
        if request.state is RequestState.PREFILL:
            request.move(RequestState.DECODE)
            self.groups.add(request)
        if request.known_tokens > len(request.page_ids) * self._config.page_tokens:
            self._stalled[request] = None

    def share_pages(self) -> tuple[list[Action], list[Request]]:
        """Give pages to those who wait for one; if there are too few, let the last leave.

        Return what that means for others, and who has left: WAITING, not yet in the queue.
        """
        actions: list[Action] = []
        left: list[Request] = []
        if self._leaving:
            left += self._depart(actions)
        if self._stalled:
            self._give_pages()
        if self._stalled:
            self._make_leave()
            left += self._depart(actions)
            self._give_pages()
        return actions, left

    def next_microbatch(self, now_s: float) -> SendMicrobatch | None:
        """Plan and count one more microbatch, if there is room for it and work to do."""
        if not self.pipeline.has_room():
            return None
        parts = next_parts(
            self.groups,
            self._running,
            self._budget,
            stalled=self._stalled,
            max_requests=self._config.max_microbatch_requests,
        )
        if not parts:
            return None
        for part in parts:
            part.request.num_in_flight += 1
            if not part.request.num_pages_named or part.num_samples > 1:
                self.rows.name(part.request.rows[: max(part.num_samples, 1)])
        return describe(
            parts,
            epoch=self.epoch,
            seq_no=self.pipeline.send(parts),
            page_tokens=self._config.page_tokens,
            predicted_ms=self.pace.sent(work_of(parts), now_s),
        )

    def ack(self, acked: Acked, now_s: float) -> tuple[Part, ...] | None:
        """Take an acknowledgement; return the microbatch, or None for a duplicate.

        Raises:
            InvariantViolated: it does not fit what was sent; nothing has changed.
        """
        parts = self.pipeline.ack(acked)
        self._outlook.forget()
        if parts is not None and self.pace.acked(acked, now_s) and self.pace.latency:
            self._budget.replace(self.pace.latency)
            self.groups.replace(self.pace.latency)
        return parts

    def eta_s(self, request: Request, now_s: float) -> float:
        """Estimate the time until the known tokens of an output are computed, at least 0.

        By the model if there is one, else by its own rate so far.
        """
        latency = self.pace.latency
        if latency is None:
            return request.eta_s(now_s)
        return self._outlook.left_ms(request, self._running, self.groups, latency) / 1000

    def complete(self, parts: tuple[Part, ...]) -> list[Action]:
        """Store what a microbatch has filled; free the pages of ended outputs it was last for."""
        store = self.stores.start(parts)
        for part in parts:
            part.request.num_in_flight -= 1
            self._free_if_gone(part.request)
        return [] if store is None else [store]

    def leave(self, request: Request) -> list[Action]:
        """Take away the row of an output that goes; its pages follow when none is in flight."""
        actions: list[Action] = []
        load_id = self.loads.cancel(request)
        if load_id is not None:
            actions.append(SendCancelLoad(load_id=load_id))
        self.groups.remove(request)
        self._budget.leave(request)
        self._stalled.pop(request, None)
        self._leaving.pop(request, None)
        del self._running[request]
        if request.row is None:
            raise InvariantViolated(f"{request.request_id} runs without a row")
        actions += self.rows.give_back(request.rows)
        request.row = None
        self._free_if_gone(request)
        return actions

    def is_at_rest(self) -> bool:
        """Whether nothing runs, flies, loads or is stored, and every page and row is free."""
        self.pages.check_integrity()
        rows, in_flight = self.rows.num_taken, self.pipeline.num_in_flight
        open_work = (self._running, rows, in_flight, len(self.loads), len(self.stores))
        return not any(open_work) and self.pages.num_free == self.pages.num_pages

    def _give_pages(self) -> None:
        """Give those who wait for a page theirs, in order of rank, as long as there are any."""
        first = sorted(self._stalled, key=lambda request: request.rank)
        for request in first[: self.pages.num_free]:
            request.page_ids.append(self.pages.allocate_behind(request.page_ids[-1]))
            del self._stalled[request]

    def _make_leave(self) -> None:
        """Let no more of those who have to leave be sent."""
        num_pages = self.pages.num_pages
        for request in choose_leavers(self._running, self._stalled, num_pages=num_pages):
            request.move(RequestState.LEAVING)
            self.groups.remove(request)
            self._stalled.pop(request, None)
            self._leaving[request] = None

    def _depart(self, actions: list[Action]) -> list[Request]:
        """Let those who leave wait again, once nothing of them is in flight; return them."""
        left = [request for request in self._leaving if not request.num_in_flight]
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
        self._budget.begin(prefill)
        request.start_prefill(prefill, hit_pages=hit_pages, now_s=now_s)

    def _free_if_gone(self, request: Request) -> None:
        """Give back the pages of an output without a row that has nothing in flight."""
        if request.row is None and not request.num_in_flight:
            self.pages.release(request.drop_pages())


def route_of(message: Acked | Loaded | Stored, latest: Route | None, epoch: int) -> Route | None:
    """Return the route that a stage speaks of, or None if that is gone.

    Args:
        message: what it says.
        latest: the route that stands, if one does.
        epoch: of the last route that was formed.

    Raises:
        InvariantViolated: the epoch was never formed or has no such stage.
    """
    if message.epoch > epoch:
        raise InvariantViolated(f"message of epoch {message.epoch}, the latest is {epoch}")
    if latest is None or message.epoch < latest.epoch:
        return None
    if not 0 <= message.stage < latest.num_stages:
        raise InvariantViolated(
            f"message of stage {message.stage}, the route has {latest.num_stages}"
        )
    return latest


def release_lease(request: Request) -> list[Action]:
    """Let go of an output's lease, if it has one."""
    lease_id = request.take_lease()
    return [] if lease_id is None else [ReleaseLease(lease_id=lease_id)]
