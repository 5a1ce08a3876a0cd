"""The workers of one simulated route: what each holds outlives the route, what it was sent not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from scheduler.actions import Action, SendCommitLoad, SendLoad, SendSavePages
from scheduler.events import Acked, Event, RouteFormed
from scheduler.load_parts import part_of
from tests.order_checks import OrderChecks
from tests.simulated_stage import PAGE_TOKENS, Page, Redis, SimulatedStage

Hear = Callable[[Event], None]


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class SimulatedWorker:
    """What a worker holds."""

    pool_id: str
    pool: list[list[int]]
    """Contents of its pages."""
    host: dict[int, Page] = dataclasses.field(default_factory=dict)
    """Contents of its host pages."""

    @classmethod
    def new(cls, pool_id: str, num_pages: int) -> SimulatedWorker:
        """Return one that holds nothing."""
        return cls(pool_id=pool_id, pool=[[-1] * PAGE_TOKENS for _ in range(num_pages)])


class SimulatedRoute:
    """One epoch of some workers."""

    def __init__(
        self, formed: RouteFormed, workers: Sequence[SimulatedWorker], checks: OrderChecks
    ) -> None:
        """Begin with what the workers hold."""
        self.num_part_loads = 0
        """Loads of which some stages held a part."""
        self.formed, self.workers, self._checks = formed, workers, checks
        self._stages = [
            SimulatedStage(
                index=index,
                epoch=formed.epoch,
                is_last=index == len(workers) - 1,
                pool=worker.pool,
                host=worker.host,
            )
            for index, worker in enumerate(workers)
        ]

    def order(self, action: Action) -> None:
        """Send an order to every stage."""
        self._checks.check(action)
        self.num_part_loads += isinstance(action, SendCommitLoad) and action.held is not None
        for index, stage in enumerate(self._stages):
            own = (
                part_of(index, action) if isinstance(action, SendLoad | SendCommitLoad) else action
            )
            if own is not None:
                stage.orders.append(own)

    def moves(self, redis: Redis, hear: Hear) -> Iterator[Callable[[], None]]:
        """Return everything that can happen next."""
        upstream = None
        for stage in self._stages:
            if stage.can_work(upstream):
                yield stage.work
            for order in stage.beside:
                for in_part in {False, isinstance(order, SendLoad)}:
                    yield functools.partial(stage.end_beside, order, redis, in_part=in_part)
            if stage.said:
                yield functools.partial(self._say, stage, hear)
            upstream = stage

    def end(self, *, works_on: bool) -> list[Event]:
        """End the epoch; return what was said and never heard.

        The workers work on for a while, unheard, or copy at least what is to go to host memory, as
        those do whose link broke.
        """
        ghosts = [event for stage in self._stages for event in stage.said]
        if works_on:
            self._work_off()
        for stage in self._stages:
            for order in stage.orders:
                if isinstance(order, SendSavePages):
                    stage.save(order)
        return ghosts

    def _work_off(self) -> None:
        """Let the stages do what they can of what they were sent."""
        upstream = None
        for stage in self._stages:
            while stage.can_work(upstream):
                stage.work()
            upstream = stage

    def _say(self, stage: SimulatedStage, hear: Hear) -> None:
        """Let the engine hear a stage's first word."""
        event = stage.said.popleft()
        if isinstance(event, Acked):
            self._checks.acked(event.stage)
        hear(event)
