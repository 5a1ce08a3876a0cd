"""Which free workers form the next route. Pure.

Attached ranges are the same or apart, so there is one way to tile the model with them, and for each
of its ranges a few workers to choose from. The cheapest way through them wins: first of all without
doubted links and workers, then with those that were a stage last, since their pages have contents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.doubts import Doubts, Pair
from scheduler.worker_hello import WorkerHello

_Cost = tuple[int, int, int, int, int]
"""How many are held, doubted, without contents, not the wish of the one before; sum of ranks."""
_FREE: _Cost = (0, 0, 0, 0, 0)


def tiling(workers: Iterable[WorkerHello], model_layers: int) -> list[list[WorkerHello]] | None:
    """Return the workers for each range of an exact tiling, in their order; None without one."""
    by_first: dict[int, list[WorkerHello]] = {}
    for worker in workers:
        by_first.setdefault(worker.layers.first, []).append(worker)
    stages: list[list[WorkerHello]] = []
    layer = 0
    while layer < model_layers:
        if layer not in by_first:
            return None
        stages.append(by_first[layer])
        layer = stages[-1][0].layers.last
    return stages


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteChoice:
    """What there is to know when workers are chosen."""

    doubts: Doubts
    """What failed lately."""
    last_epochs: Mapping[str, int]
    """In which epoch a worker was a stage last; a missing one never was."""
    now_s: float

    def best(self, stages: Sequence[Sequence[WorkerHello]]) -> tuple[str, ...] | None:
        """Return the best worker for each stage; None if every way leads over what is held.

        stages are those to choose from, the longest attached first.
        """
        ways: list[tuple[_Cost, tuple[WorkerHello, ...]]] = [(_FREE, ())]
        for candidates in stages:
            ways = [
                min(
                    (
                        (_sum(cost, own, self._link_cost(way[-1:], worker)), (*way, worker))
                        for cost, way in ways
                    ),
                    key=lambda each: each[0],
                )
                for worker, own in zip(candidates, self._own_costs(candidates), strict=True)
            ]
        cost, way = min(ways, key=lambda each: each[0])
        return None if cost[0] else tuple(worker.worker_id for worker in way)

    def _own_costs(self, candidates: Sequence[WorkerHello]) -> Iterator[_Cost]:
        """Yield what speaks against each candidate of one stage."""
        epochs = [self.last_epochs.get(each.worker_id, 0) for each in candidates]
        for rank, (worker, epoch) in enumerate(zip(candidates, epochs, strict=True)):
            held, doubted = self._doubt((worker.worker_id, worker.worker_id))
            yield held, doubted, int(epoch < max(epochs)), 0, rank

    def _link_cost(self, before: Sequence[WorkerHello], worker: WorkerHello) -> _Cost:
        """Return what speaks against a link from the stage before, if there is one."""
        if not before:
            return _FREE
        (dialler,) = before
        held, doubted = self._doubt((dialler.worker_id, worker.worker_id))
        return held, doubted, 0, int(dialler.peer != worker.data_address), 0

    def _doubt(self, pair: Pair) -> tuple[int, int]:
        """Return whether a pair is held, and doubted."""
        return int(self.doubts.is_held(pair, self.now_s)), int(self.doubts.has(pair))


def _sum(*costs: _Cost) -> _Cost:
    """Add costs."""
    held, doubted, cold, unwished, rank = map(sum, zip(*costs, strict=True))
    return held, doubted, cold, unwished, rank
