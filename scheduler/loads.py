"""Cached pages on their way into staging, before a request's prefill. Pure.

A load begins while its request still waits for a place. What it has brought is the minimum over the
stages, and waits in staging until the request's turn comes. How long it may take says the policy:

- timeout: the stages end it after a time, with what they have read.
- best_effort: they end it when the request's turn has come.
- wait_complete: they read until all is there.

A stage that does not answer in time has nothing, and a stage that has nothing ends the load at
once: the request is computed from where it would have begun. A cache fault is a miss.
Source: the prefetch policies of SGLang's HiCache
(https://docs.sglang.ai/advanced_features/hicache_design.html).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from chunkmesh.errors import InvariantViolated
from scheduler.actions import HeldPages, SendEndLoad, SendLoad
from scheduler.cache_counts import LoadOutcome
from scheduler.events import Loaded
from scheduler.request import Request

GRACE_S = 1.0
"""Time for the stages' answers to arrive once they have to end a load."""
HARD_CAP_S = 300.0
"""Longest load, whatever the policy."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Load:
    """One load on all stages."""

    request: Request
    load_id: int
    pages: range
    """Of the prompt, at least one."""
    host_ids: tuple[int, ...] = ()
    """Where the first of them lie in host memory; held until the load is closed."""
    ends_s: float
    """When the stages end it by themselves; never, if they do not."""
    deadline_s: float
    """When stages that have not answered are given up."""
    is_ending: bool = False
    """Whether the stages were told to end it."""
    is_late: bool = False
    """Whether it has ended at its time limit, or without the answer of a stage."""
    is_damaged: bool = False
    """Whether a page was missing or wrong on a stage that has answered."""
    held: HeldPages | None = None
    """What some stages need not load."""
    ready: dict[int, int] = dataclasses.field(default_factory=dict)
    """Stage -> leading pages in its staging, 0 <= n <= len(pages)."""
    host: dict[int, int] = dataclasses.field(default_factory=dict)
    """Stage -> how many of those its own host memory had."""
    num_usable: int | None = None
    """Leading pages that all stages have; None while that is not known."""

    def num_held(self, stage: int) -> int:
        """Return how many of the first pages a stage has without loading them."""
        return 0 if self.held is None or stage in self.held.lacking else self.held.num_pages

    def fits(self, request: Request) -> bool:
        """Whether what it brings goes behind and into the pages that an output has got."""
        num_held = 0 if self.held is None else self.held.num_pages
        is_behind = self.pages.start == request.table.num_device_pages
        return is_behind and num_held <= request.table.num_partial_pages

    @property
    def outcome(self) -> LoadOutcome:
        """How much of it is usable, once that is known."""
        if not self.num_usable:
            return "empty"
        return "complete" if self.num_usable == len(self.pages) else "partial"

    @property
    def num_host_pages(self) -> int:
        """How many of the usable pages no stage has read from Redis, as far as that can be told."""
        return min(self.num_usable or 0, *self.host.values()) if self.host else 0

    @property
    def expected(self) -> range:
        """The pages that it has brought, or may still bring."""
        return self.pages if self.num_usable is None else self.pages[: self.num_usable]


class Loads:
    """The loads of one route: one at most of each request."""

    def __init__(self, *, num_stages: int, epoch: int) -> None:
        """Begin with no load."""
        self._epoch = epoch
        self._num_stages = num_stages
        self._next_id = 0
        self._open: dict[int, Load] = {}
        """Loads by id, in the order in which they began."""
        self._by_request: dict[Request, Load] = {}
        """The same."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Load]:
        return iter(self._open.values())

    def find(self, request: Request) -> Load | None:
        """Return the load of a request, if it has one."""
        return self._by_request.get(request)

    def start(
        self,
        request: Request,
        pages: range,
        host_ids: tuple[int, ...] = (),
        *,
        held: HeldPages | None = None,
        timeout_s: float | None,
        now_s: float,
    ) -> SendLoad:
        """Begin to load pages of a request, whose digests are known.

        The first of them are held at host_ids. timeout_s is when the stages end it by themselves,
        if they do.
        """
        load_id, self._next_id = self._next_id, self._next_id + 1
        longest_s = HARD_CAP_S if timeout_s is None else timeout_s + GRACE_S
        load = Load(
            request=request,
            load_id=load_id,
            pages=pages,
            host_ids=host_ids,
            held=held,
            ends_s=math.inf if timeout_s is None else now_s + timeout_s,
            deadline_s=now_s + longest_s,
        )
        self._open[load_id] = self._by_request[request] = load
        return SendLoad(
            epoch=self._epoch,
            load_id=load_id,
            digests=tuple(request.digests[pages.start : pages.stop]),
            host_ids=host_ids,
            timeout_ms=0 if timeout_s is None else max(1, round(1000 * timeout_s)),
            held=held,
        )

    def end(self, load: Load, now_s: float) -> list[SendEndLoad]:
        """Let the stages end a load with what they have read; nothing if they have or were told."""
        if load.is_ending or load.num_usable is not None:
            return []
        load.is_ending = True
        load.deadline_s = min(load.deadline_s, now_s + GRACE_S)
        return [SendEndLoad(epoch=self._epoch, load_id=load.load_id)]

    def loaded(self, event: Loaded, now_s: float) -> Load | None:
        """Take one stage's answer; return the load if it is known now what it has brought.

        An answer to a load that has ended, or a second one, changes nothing.

        Raises:
            InvariantViolated: no such load was ever sent, or more pages are ready than asked for.
        """
        if not 0 <= event.load_id < self._next_id:
            raise InvariantViolated(f"load {event.load_id} was never sent")
        load = self._open.get(event.load_id)
        if load is None or load.num_usable is not None:
            return None
        num_held = load.num_held(event.stage)
        num_pages = event.num_pages + num_held
        if not num_held <= num_pages <= len(load.pages):
            raise InvariantViolated(
                f"{event.num_pages} pages of load {event.load_id}, {len(load.pages)} were asked"
            )
        load.ready.setdefault(event.stage, num_pages)
        load.is_damaged |= event.is_damaged
        load.host.setdefault(event.stage, event.num_host_pages + num_held)
        if len(load.ready) < self._num_asked(load) and num_pages > 0:
            return None
        load.num_usable = min(load.ready.values())
        load.is_late = now_s >= load.ends_s
        return load

    def _num_asked(self, load: Load) -> int:
        """Count the stages that have to answer."""
        held = load.held
        is_all = held is None or len(load.pages) > held.num_pages
        return self._num_stages if held is None or is_all else len(held.lacking)

    def expire(self, now_s: float) -> list[Load]:
        """Return the loads whose stages were given up; they have brought nothing."""
        late = [
            load
            for load in self._open.values()
            if load.num_usable is None and load.deadline_s <= now_s
        ]
        for load in late:
            load.num_usable, load.is_late = 0, True
        return late

    def close(self, load: Load) -> None:
        """Forget a load that was used or is to be cancelled."""
        del self._open[load.load_id], self._by_request[load.request]
