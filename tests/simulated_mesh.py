"""An engine with simulated stages and a simulated HiCache, moved one step at a time.

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
    Finished,
    MatchPrefix,
    Output,
    Progress,
    PromptLogprobs,
    ReleaseLease,
    SendLoad,
    SendSavePages,
)
from scheduler.cached_pages import CachedPages
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import (
    Acked,
    Arrived,
    Cancelled,
    Checked,
    Event,
    Matched,
    RequestSpec,
    RouteFormed,
    RouteLost,
    Tick,
)
from scheduler.latency_model import PipelineLatency
from tests.order_checks import OrderChecks
from tests.simulated_clients import SimulatedClients
from tests.simulated_stage import (
    PAGE_BYTES,
    PAGE_TOKENS,
    Page,
    Redis,
    SimulatedStage,
)

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
        """Form the first route; latency is what the engine believes of its stages."""
        self.engine = Engine(config)
        self.clients = SimulatedClients()
        self._config = config
        self._num_stages, self._num_pages = num_stages, num_pages
        self._num_host_pages = num_host_pages
        self._latency = latency
        self._now_s = 0.0
        self._epoch = 0
        self._stages: list[SimulatedStage] = []
        self._num_workers = 0
        """Workers that were replaced."""
        self._pools: list[list[list[int]]] = []
        """Contents of the workers' pages, by stage; they outlive an epoch."""
        self._hosts: list[dict[int, Page]] = []
        """Contents of their host pages, likewise."""
        self._ghosts: list[Event] = []
        """Said by stages of earlier epochs, never heard yet."""
        self._matching: list[MatchPrefix] = []
        self._checking: list[CheckStored] = []
        self.redis: Redis = {}
        self._committed: dict[bytes, set[int]] = {}
        self._leases: set[str] = set()
        self._num_leases = 0
        self.form()

    def form(self, *, same_workers: bool = False) -> None:
        """Form a new route; the old one's last words may still arrive.

        Workers that stay work first on what they were sent, every other time. Else they copy at
        least what is to go to host memory, as those do whose link broke.
        """
        for stage in self._stages:
            self._ghosts += stage.said
        if self._epoch % 2:
            self._work_off()
        for stage in self._stages:
            for order in stage.orders:
                if isinstance(order, SendSavePages):
                    stage.save(order)
        self._epoch += 1
        if not same_workers:
            self._num_workers += self._num_stages
            self._pools = [
                [[-1] * PAGE_TOKENS for _ in range(self._num_pages)]
                for _ in range(self._num_stages)
            ]
            self._hosts = [{} for _ in range(self._num_stages)]
        self._checks = OrderChecks(
            self._config,
            num_stages=self._num_stages,
            epoch=self._epoch,
            specs=self.clients.specs,
            outputs=self.clients.outputs,
        )
        self._stages = [
            SimulatedStage(
                index=index,
                epoch=self._epoch,
                is_last=index == self._num_stages - 1,
                pool=self._pools[index],
                host=self._hosts[index],
            )
            for index in range(self._num_stages)
        ]
        self._give(
            RouteFormed(
                epoch=self._epoch,
                num_stages=self._num_stages,
                num_pages=self._num_pages,
                num_host_pages=self._num_host_pages,
                latency=self._latency,
                page_bytes=(PAGE_BYTES,) * self._num_stages,
                pool_ids=tuple(f"w{self._num_workers + n}" for n in range(self._num_stages)),
            )
        )

    def lose(self) -> None:
        """Lose the route; its stages go on for a while, unheard."""
        self._give(RouteLost(reason="lost"))

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
        upstream = None
        for stage in self._stages:
            if stage.can_work(upstream):
                moves.append(stage.work)
            moves += [
                functools.partial(stage.end_beside, order, self.redis, in_part=in_part)
                for order in stage.beside
                for in_part in {False, isinstance(order, SendLoad)}
            ]
            if stage.said:
                moves.append(functools.partial(self._hear, stage))
            upstream = stage
        if self._ghosts:
            moves.append(lambda: self._give(self._ghosts.pop()))
        return moves

    def check_end(self) -> None:
        """Check that everything is as if nothing had ever run, and all answers are right."""
        assert self.engine.is_idle()
        assert not self._leases
        route = self.engine._route
        assert route is not None
        specs = list(self.clients.specs.values())
        check_contents(route.pages.cached, self._pools, specs)
        check_contents(route.tiers.host._pages.cached, self._hosts, specs)
        self.clients.check_end()

    def _work_off(self) -> None:
        """Let the stages do what they can of what they were sent."""
        upstream = None
        for stage in self._stages:
            while stage.can_work(upstream):
                stage.work()
            upstream = stage

    def _give(self, event: Event) -> None:
        """Give the engine an event and do what it says."""
        self._now_s += 0.001
        for action in self.engine.handle(event, self._now_s):
            self._do(action)

    def _hear(self, stage: SimulatedStage) -> None:
        """Hear what a stage said first."""
        event = stage.said.popleft()
        if isinstance(event, Acked):
            self._checks.acked(event.stage)
        self._give(event)

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
                for page in pages:
                    assert page.page_index or page.parent == namespace
                    self._committed.setdefault(page.digest, set()).add(index)
            case Output() | Progress() | PromptLogprobs() | Finished() | Failed():
                self.clients.hear(action)
            case _:
                self._checks.check(action)
                for stage in self._stages:
                    stage.orders.append(action)


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
        for memory in memories:
            ids = np.array(memory[page.page_id], dtype=np.uint32)
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
