"""Whatever workers do, in any order, routes stay whole and nothing that could serve lies idle."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.decisions import (
    Decision,
    RouteAwaited,
    RouteBroke,
    RouteStands,
    SendConnect,
    SendJoin,
    SendReleased,
    SendStandBy,
)
from scheduler.formation import OutboundLink, Phase
from scheduler.prospect import REFORM_S
from scheduler.registry import FORMING_S, FaultSide
from tests.hellos import BASE, MODEL_LAYERS, PATIENCE, hello, new_registry

_SPLITS = [(0, 6), (0, 3, 6), (0, 1, 4, 6)]


class Workers(RuleBasedStateMachine):
    """Knows what each worker was told, and answers as a worker would, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = new_registry()
        self.now_s = 0.0
        self.num_made = 0
        self.joins: dict[str, SendJoin] = {}
        """The last of each attached worker, while it is in force."""
        self.standing: dict[int, tuple[str, ...]] = {}
        self.broken: set[int] = set()
        self.released: set[str] = set()
        self.pools: dict[str, tuple[int, str | None]] = {}
        """Pages of each worker's pool, and its name once it is known."""
        self.known_pools: set[str] = set()
        """All names that were ever given."""
        self.wait_until_s: float | None = None

    @initialize(split=st.sampled_from(_SPLITS))
    def choose_split(self, split: tuple[int, ...]) -> None:
        """All workers of a run hold one of these ranges."""
        self.ranges = list(itertools.pairwise(split))

    @rule(data=st.data(), capacity=st.sampled_from([64, 160]))
    def attach(self, data: st.DataObject, capacity: int) -> None:
        """A new process comes."""
        first, last = data.draw(st.sampled_from(self.ranges))
        self.num_made += 1
        name = f"w{self.num_made}"
        self._take(self.registry.attach(hello(name, first, last, capacity=capacity), self.now_s))

    @precondition(lambda self: self.registry.workers)
    @rule(data=st.data(), comes_back=st.booleans())
    def lose(self, data: st.DataObject, comes_back: bool) -> None:
        """A worker dies, or its stream ends and it attaches again."""
        name = data.draw(st.sampled_from(sorted(self.registry.workers)))
        known = self.registry.workers[name]
        self.joins.pop(name, None)
        self.pools.pop(name, None)
        self.released.discard(name)
        self._take(self.registry.lose(name, "lost", self.now_s))
        assert self.registry.lose(name, "lost", self.now_s) == []
        if comes_back:
            self._take(self.registry.attach(known, self.now_s))

    @precondition(lambda self: self.registry.workers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A worker announces its end."""
        name = data.draw(st.sampled_from(sorted(self.registry.workers)))
        was_leaving = name in self.registry.leaving
        decisions = self.registry.leave(name, self.now_s)
        released = [each.worker_id for each in decisions if isinstance(each, SendReleased)]
        assert released == ([] if was_leaving else [name])
        self._take(decisions)

    @precondition(lambda self: self.joins)
    @rule(data=st.data(), side=st.sampled_from(FaultSide), is_late=st.booleans())
    def fault(self, data: st.DataObject, side: FaultSide, is_late: bool) -> None:
        """A stage cannot go on; or it says so of an epoch that is over."""
        name = data.draw(st.sampled_from(sorted(self.joins)))
        epoch = self.joins[name].epoch - (1 if is_late else 0)
        self._take(self.registry.fault(name, epoch, "broke", self.now_s, side=side))

    @rule()
    def stand(self) -> None:
        """All workers of all routes that form answer."""
        for route in list(self.registry.routes.values()):
            self._answer(route.epoch, list(route.worker_ids), len(route.worker_ids))

    @precondition(lambda self: self.joins)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Some workers of a route that forms connect, in any order."""
        epoch = data.draw(st.sampled_from(sorted({each.epoch for each in self.joins.values()})))
        names = [name for name, join in self.joins.items() if join.epoch == epoch]
        num_joined = data.draw(st.integers(0, len(names)))
        self._answer(epoch, data.draw(st.permutations(names)), num_joined)

    def _answer(self, epoch: int, names: list[str], num_joined: int) -> None:
        """Let all be ready, and so many of them connect."""
        for name in names:
            self._take(self.registry.join_ready(name, epoch))
        for name in names[:num_joined]:
            link = OutboundLink(transport="memory", rtt_us=1)
            self._take(self.registry.joined(name, epoch, link, self.now_s))

    @rule(passed_s=st.sampled_from([0.05, 0.5, 2.5, 12.0]))
    def tick(self, passed_s: float) -> None:
        """Time passes."""
        self.now_s += passed_s
        self._take(self.registry.tick(self.now_s))

    @invariant()
    def routes_are_whole(self) -> None:
        """Each is an exact tiling of attached workers that stay; no worker is in two."""
        taken: list[str] = []
        for route in self.registry.routes.values():
            layers = [self.registry.workers[each].layers for each in route.worker_ids]
            assert [0, *(each.last for each in layers)] == [
                *(each.first for each in layers),
                MODEL_LAYERS,
            ]
            taken += route.worker_ids
        assert len(taken) == len(set(taken))
        assert not self.registry.leaving & set(taken)

    @invariant()
    def what_was_told_is_what_stands(self) -> None:
        """The engine knows of each standing route, and of no other."""
        standing = {route.epoch: route.worker_ids for route in self.registry.standing()}
        assert standing == self.standing
        assert bool(standing) == (self.registry.reason() == "")
        in_routes = {
            name: route.epoch
            for route in self.registry.routes.values()
            for name in route.worker_ids
        }
        assert {name: join.epoch for name, join in self.joins.items()} == in_routes

    @invariant()
    def waits_are_bounded(self) -> None:
        """Requests are told to wait only while no route stands, and not for ever."""
        if self.standing:
            self.wait_until_s = None
        if self.wait_until_s is not None:
            longest = max(PATIENCE.announced_s, REFORM_S)
            assert self.wait_until_s <= self.now_s + longest

    def teardown(self) -> None:
        """In the end, whoever tiles the model serves, once failures are forgotten."""
        for _ in range(3):
            self.now_s += FORMING_S + 60.0
            self._take(self.registry.tick(self.now_s))
        self.now_s += 5.0
        self._take(self.registry.tick(self.now_s))
        free = [
            hello.layers.first
            for name, hello in self.registry.workers.items()
            if name not in self.joins and name not in self.registry.leaving
        ]
        if hasattr(self, "ranges"):
            assert not all(first in free for first, _ in self.ranges), "workers lie idle"

    def _take(self, decisions: list[Decision]) -> None:
        """Do as the shell and the workers do."""
        for each in decisions:
            match each:
                case SendJoin():
                    self._join(each)
                case SendConnect():
                    assert self.joins[each.worker_id].epoch == each.epoch
                case SendStandBy():
                    self.joins.pop(each.worker_id, None)
                    assert each.worker_id not in self.registry.leaving
                case SendReleased():
                    self.joins.pop(each.worker_id, None)
                    self.released.add(each.worker_id)
                case RouteStands():
                    self._stands(each)
                case RouteBroke():
                    self.standing.pop(each.epoch)
                    assert each.epoch not in self.broken
                    self.broken.add(each.epoch)
                case RouteAwaited():
                    assert not self.standing
                    assert self.broken, "nobody waits before the first route"
                    self.wait_until_s = self.now_s + each.wait_s

    def _join(self, join: SendJoin) -> None:
        """Each Join is of a new epoch, and makes a new pool where the number of pages changes."""
        before = self.joins.get(join.worker_id)
        assert join.epoch > BASE
        assert before is None or join.epoch > before.epoch
        assert bool(join.next_address) == (join.stage_index + 1 < join.num_stages)
        self.joins[join.worker_id] = join
        num_pages, name = self.pools.get(join.worker_id, (0, None))
        is_kept = num_pages == join.num_pages
        self.pools[join.worker_id] = (join.num_pages, name if is_kept else None)

    def _stands(self, stands: RouteStands) -> None:
        """All its workers have it as their last Join; names of pools say what is in them."""
        assert {self.joins[each].epoch for each in stands.worker_ids} == {stands.epoch}
        assert self.registry.routes[stands.epoch].phase is Phase.STANDING
        self.standing[stands.epoch] = stands.worker_ids
        for worker_id, pool_id in zip(stands.worker_ids, stands.pool_ids, strict=True):
            num_pages, name = self.pools[worker_id]
            assert name == pool_id if name is not None else pool_id not in self.known_pools
            self.known_pools.add(pool_id)
            self.pools[worker_id] = (num_pages, pool_id)


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
