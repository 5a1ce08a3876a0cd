"""Cached pages on their way into staging, before a request's prefill. Pure.

The usable hit is the minimum over the stages. When a stage has nothing, or the deadline passes,
the load is given up and the request is computed from its start: a cache fault is a miss.
"""

from __future__ import annotations

import dataclasses

from chunkmesh.errors import InvariantViolated
from scheduler.actions import SendLoad
from scheduler.request import Request


@dataclasses.dataclass(slots=True, kw_only=True)
class _Load:
    """One load on all stages."""

    request: Request
    """LOADING."""
    asked: int
    """Pages asked for, >= 1."""
    deadline_s: float
    ready: dict[int, int] = dataclasses.field(default_factory=dict)
    """Stage -> leading pages in its staging, 0 <= n <= asked."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadEnd:
    """The usable part of a load is known."""

    request: Request
    load_id: int
    num_pages: int
    """Leading pages that every stage has; 0 means that the load is to be cancelled."""


class Loads:
    """The loads of one route."""

    def __init__(self, *, num_stages: int, timeout_s: float) -> None:
        """Begin with no load; each may take timeout_s."""
        self._num_stages = num_stages
        self._timeout_s = timeout_s
        self._next_id = 0
        self._open: dict[int, _Load] = {}
        """Loads by id, in the order of their deadlines."""

    def __len__(self) -> int:
        return len(self._open)

    def start(self, request: Request, *, now_s: float) -> SendLoad:
        """Begin to load the whole match of a request."""
        load_id, self._next_id = self._next_id, self._next_id + 1
        digests = tuple(request.digests[: request.num_match_pages])
        self._open[load_id] = _Load(
            request=request, asked=len(digests), deadline_s=now_s + self._timeout_s
        )
        return SendLoad(load_id=load_id, digests=digests)

    def loaded(self, stage: int, load_id: int, num_pages: int) -> LoadEnd | None:
        """Take one stage's answer; return the end of the load if that decides it.

        An answer to a load that has ended, or a second one, changes nothing.

        Raises:
            InvariantViolated: no such load was ever sent, or more pages are ready than asked for.
        """
        if not 0 <= load_id < self._next_id:
            raise InvariantViolated(f"load {load_id} was never sent")
        load = self._open.get(load_id)
        if load is None:
            return None
        if not 0 <= num_pages <= load.asked:
            raise InvariantViolated(f"{num_pages} pages of load {load_id}, {load.asked} were asked")
        load.ready.setdefault(stage, num_pages)
        if len(load.ready) < self._num_stages and num_pages > 0:
            return None
        return self._end(load_id, min(load.ready.values()))

    def expire(self, now_s: float) -> list[LoadEnd]:
        """End the loads whose deadline has passed, without pages."""
        late = [load_id for load_id, load in self._open.items() if load.deadline_s <= now_s]
        return [self._end(load_id, 0) for load_id in late]

    def cancel(self, request: Request) -> int | None:
        """Forget the load of a request; return its id, or None if it has none."""
        for load_id, load in self._open.items():
            if load.request is request:
                del self._open[load_id]
                return load_id
        return None

    def _end(self, load_id: int, num_pages: int) -> LoadEnd:
        """Close a load."""
        load = self._open.pop(load_id)
        return LoadEnd(request=load.request, load_id=load_id, num_pages=num_pages)
