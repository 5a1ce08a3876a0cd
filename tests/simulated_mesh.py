"""An engine with simulated routes and a simulated HiCache, moved one step at a time.

Checks everything that the engine says while it goes: what clients hear, one end for each output,
leases given back once, nothing about those who have ended; and its orders (order_checks.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from chunkmesh.pages import extend_chain
from scheduler.actions import (
    Action,
    CheckStored,
    CommitPages,
    Failed,
    FenceStage,
    Finished,
    InvalidatePages,
    MatchPrefix,
    Output,
    Progress,
    PromptLogprobs,
    ReleaseLease,
)
from scheduler.cached_pages import CachedPages
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import (
    Arrived,
    Cancelled,
    Checked,
    Event,
    LossCause,
    Matched,
    RequestSpec,
    RouteAwaited,
    RouteFormed,
    RouteLost,
    Tick,
)
from scheduler.latency_model import PipelineLatency
from tests.order_checks import OrderChecks
from tests.simulated_clients import SimulatedClients
from tests.simulated_route import SimulatedRoute, SimulatedWorker
from tests.simulated_stage import PAGE_BYTES, PAGE_TOKENS, Page, Redis

NUM_PAGES = 40


class SimulatedMesh:
    """Everything around the engine."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_stages: int,
        num_pages: int = NUM_PAGES,
        num_host_pages: int = 0,
        latency: PipelineLatency | None = None,
    ) -> None:
        """Form the first route; latency is what the engine believes of the stages of each."""
        self.engine = Engine(config)
        self.clients = SimulatedClients()
        self._config = config
        self._num_stages, self._num_pages = num_stages, num_pages
        self._num_host_pages = num_host_pages
        self._latency = latency
        self._now_s = 0.0
        self.routes: dict[int, SimulatedRoute] = {}
        """That stand, by epoch."""
        self._epoch = 0
        self._spares: list[list[SimulatedWorker]] = [[] for _ in range(num_stages)]
        """By stage; the last that came free at the end."""
        self._num_workers = 0
        self.num_part_loads = 0
        """Hits on lost routes of which some stages still held a part."""
        self._ghosts: list[Event] = []
        """Said by stages of lost routes, never heard yet."""
        self._matching: list[MatchPrefix] = []
        self._checking: list[CheckStored] = []
        self.redis: Redis = {}
        self._committed: dict[bytes, set[int]] = {}
        self._leases: set[str] = set()
        self._num_leases = 0
        self.form()

    def form(self, *, new_stages: Iterable[int] | None = None) -> None:
        """Form one more route, of spares as far as there are any but for new_stages, all if None.

        Spares that are not used are gone.
        """
        is_new = set(range(self._num_stages) if new_stages is None else new_stages)
        workers = [
            spares[-1] if spares and stage not in is_new else self._new_worker()
            for stage, spares in enumerate(self._spares)
        ]
        self._spares = [[] for _ in range(self._num_stages)]
        self._epoch += 1
        formed = RouteFormed(
            epoch=self._epoch,
            num_stages=self._num_stages,
            num_pages=self._num_pages,
            num_host_pages=self._num_host_pages,
            latency=self._latency,
            page_bytes=(PAGE_BYTES,) * self._num_stages,
            pool_ids=tuple(worker.pool_id for worker in workers),
        )
        checks = OrderChecks(
            self._config,
            num_stages=self._num_stages,
            epoch=self._epoch,
            specs=self.clients.specs,
            outputs=self.clients.outputs,
        )
        self.routes[self._epoch] = SimulatedRoute(formed, workers, checks)
        self._give(formed)

    def lose(self, which: int = 0, cause: LossCause = "ended") -> None:
        """Lose one of the routes, if any stands; its stages go on for a while, unheard."""
        if not self.routes:
            return
        epoch = list(self.routes)[which % len(self.routes)]
        self._end(epoch)
        self._give(RouteLost(epoch=epoch, reason="lost", cause=cause))

    def await_route(self, wait_s: float, *, is_announced: bool) -> None:
        """Tell how long a route will be awaited, if none stands."""
        if not self.routes:
            self._give(RouteAwaited(wait_s=wait_s, reason="awaited", is_announced=is_announced))

    def flush(self) -> None:
        """Let the devices' pages be forgotten."""
        self.engine.forget_cached()

    def drain(self) -> None:
        """Let all be written that only the workers hold."""
        self._now_s += 0.001
        for action in self.engine.flush(self._now_s):
            self._do(action)

    def arrive(self, spec: RequestSpec) -> None:
        """Let a request arrive."""
        self.clients.ask(spec)
        self._give(Arrived(spec=spec))

    def cancel(self, request_id: str) -> None:
        """Let a client give up."""
        self.clients.give_up(request_id)
        self._give(Cancelled(request_id=request_id, cause="gone"))

    def clear(self) -> None:
        """Let everything that is stored be forgotten, in HiCache too."""
        self.redis.clear()
        self._committed.clear()

    def evict(self) -> None:
        """Drop one page on one stage, behind everybody's back."""
        if self.redis:
            del self.redis[next(iter(self.redis))]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
        self._give(Tick())

    def moves(self) -> list[Callable[[], None]]:
        """Return everything that can happen next."""
        moves: list[Callable[[], None]] = [
            functools.partial(self._answer_match, match) for match in self._matching
        ]
        moves += [functools.partial(self._answer_check, check) for check in self._checking]
        for route in self.routes.values():
            moves += route.moves(self.redis, self._give)
        if self._ghosts:
            moves.append(lambda: self._give(self._ghosts.pop()))
        return moves

    def check_end(self) -> None:
        """Check that everything is as if nothing had ever run, and all answers are right."""
        assert self.engine.is_idle()
        assert not self._leases
        assert self.engine.snapshot().num_parked == 0
        assert not self.engine.recoveries._open
        specs = list(self.clients.specs.values())
        for route in self.engine._routes:
            workers = self.routes[route.epoch].workers
            assert not list(route.queue)
            check_contents(route.pages.cached, [each.pool for each in workers], specs)
            host = route.tiers.host._pages.cached
            check_contents(host, [each.host for each in workers], specs)
        self.clients.check_end()

    def _new_worker(self) -> SimulatedWorker:
        self._num_workers += 1
        return SimulatedWorker.new(f"w{self._num_workers}", self._num_pages)

    def _end(self, epoch: int) -> None:
        """Let a route be gone; its workers are free."""
        route = self.routes.pop(epoch)
        self.num_part_loads += route.num_part_loads
        self._ghosts += route.end(works_on=bool(epoch % 2))
        for spares, worker in zip(self._spares, route.workers, strict=True):
            spares.append(worker)

    def _give(self, event: Event) -> None:
        """Give the engine an event and do what it says."""
        self._now_s += 0.001
        late: list[FenceStage] = []
        for action in self.engine.handle(event, self._now_s):
            if isinstance(action, FenceStage):
                late.append(action)
            else:
                self._do(action)
        for fence in late:
            self._end(fence.epoch)
            self._give(RouteLost(epoch=fence.epoch, reason=fence.reason))

    def _answer_match(self, match: MatchPrefix) -> None:
        """Answer with the leading pages that all stages have committed, under a lease."""
        self._matching.remove(match)
        num_pages = self._count_committed(match.digests)
        lease_id = f"lease {self._num_leases}" if num_pages else None
        if lease_id is not None:
            self._num_leases += 1
            self._leases.add(lease_id)
        self._give(
            Matched(
                request_id=match.request_id,
                child=match.child,
                num_pages=num_pages,
                lease_id=lease_id,
            )
        )

    def _answer_check(self, check: CheckStored) -> None:
        """Answer likewise; nobody gets a lease."""
        self._checking.remove(check)
        num_pages = self._count_committed(check.digests)
        self._give(Checked(last_digest=check.digests[-1], num_pages=num_pages))

    def _count_committed(self, digests: Sequence[bytes]) -> int:
        """Count the leading pages that all stages have committed."""
        whole = (len(self._committed.get(digest, ())) == self._num_stages for digest in digests)
        return sum(itertools.takewhile(bool, whole))

    def _do(self, action: Action) -> None:
        """Do one action."""
        match action:
            case MatchPrefix():
                self.clients.check_match(action)
                self._matching.append(action)
            case CheckStored():
                self._checking.append(action)
            case ReleaseLease(lease_id=lease_id):
                self._leases.remove(lease_id)
            case CommitPages(stage=index, namespace=namespace, pages=pages):
                assert action.epoch in self.routes
                for page in pages:
                    assert page.page_index or page.parent == namespace
                    self._committed.setdefault(page.digest, set()).add(index)
            case Output() | Progress() | PromptLogprobs() | Finished() | Failed():
                self.clients.hear(action)
            case InvalidatePages() | FenceStage():
                raise AssertionError(action)
            case _:
                self.routes[action.epoch].order(action)


def check_contents(
    cached: CachedPages,
    memories: Sequence[Sequence[Sequence[int]]] | Sequence[Mapping[int, Page]],
    specs: Iterable[RequestSpec],
) -> None:
    """Check that whatever a request might find in a tier is there, on every stage."""
    cached.check_integrity(held=())
    namespaces = {spec.namespace for spec in specs}
    for page in cached._by_id.values():
        parents = namespaces if page.parent is None else {page.parent.digest}
        for stage in set(range(len(memories))) - page.lacking:
            ids = np.array(memories[stage][page.page_id], dtype=np.uint32)
            chains = {extend_chain(parent, ids, PAGE_TOKENS) for parent in parents}
            assert (page.digest,) in chains


def run(mesh: SimulatedMesh, choose: Callable[[int], int], *, num_moves: int) -> bool:
    """Make up to num_moves moves, each chosen by index; return whether there was always one."""
    for _ in range(num_moves):
        moves: Sequence[Callable[[], None]] = mesh.moves()
        if not moves:
            return False
        moves[choose(len(moves))]()
    return True
