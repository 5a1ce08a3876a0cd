"""One output of a request on its way through the engine: state, pages, chunks and tokens. Pure.

WAITING -> QUEUED -> LOADING -> PREFILL -> DECODE -> FINISHED
   ^          |         |          ^ |       |
   |          +---------|----------+ |       |       FINISHED can follow every state.
   +---- LEAVING <------+------------+-------+       WAITING too, but for it: the route is lost

Of n outputs only the first one exists, and stands for all, until the prompt's first tokens are
there (fork.py).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

from chunkmesh.errors import InvariantViolated
from chunkmesh.pages import TokenIds, extend_chain
from chunkmesh.token_counts import TokenCounts, count_tokens
from scheduler.events import Matched, RequestSpec
from scheduler.page_table import PageTable
from scheduler.prefill import Prefill
from scheduler.setbacks import Setbacks


class RequestState(enum.Enum):
    """Where an output stands."""

    WAITING = "waiting"
    """HiCache has not answered yet."""
    QUEUED = "queued"
    """Waits for pages and a row."""
    LOADING = "loading"
    """Holds pages; stages read the hit into staging."""
    PREFILL = "prefill"
    """Chunks are sent or in flight."""
    DECODE = "decode"
    """Has at least one output token and is a member of a decode group."""
    LEAVING = "leaving"
    """Gives its pages to others and waits again, as soon as nothing of it is in flight."""
    FINISHED = "finished"
    """Its end was told; pages may still wait for microbatches in flight."""


_ANY_TIME = (RequestState.WAITING, RequestState.FINISHED)
_NEXT = {
    RequestState.WAITING: {RequestState.QUEUED, *_ANY_TIME},
    RequestState.QUEUED: {RequestState.LOADING, RequestState.PREFILL, *_ANY_TIME},
    RequestState.LOADING: {RequestState.PREFILL, RequestState.LEAVING, *_ANY_TIME},
    RequestState.PREFILL: {RequestState.DECODE, RequestState.LEAVING, *_ANY_TIME},
    RequestState.DECODE: {RequestState.LEAVING, *_ANY_TIME},
    RequestState.LEAVING: {RequestState.WAITING, RequestState.FINISHED},
    RequestState.FINISHED: set[RequestState](),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What the outputs that do not exist yet will have, so that they can always begin."""

    rows: tuple[int, ...]
    """Of child 1, 2, and so on."""
    page_ids: tuple[int, ...]
    """Behind the full pages of the prompt, one for each; none if none of them needs one."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """Owner of everything that changes about one output; compared by identity."""

    spec: RequestSpec
    child: int = 0
    """0 <= child < spec.num_outputs."""
    arrival: int = 0
    """How many requests arrived before it."""
    arrived_s: float = 0.0
    """When it did, on the scheduler's clock."""
    turn: int = 0
    """When it is served among those of its priority, >= 0 (fair_turns.py)."""
    state: RequestState = RequestState.WAITING
    prompt_tokens: int = dataclasses.field(init=False)
    """Length of the prompt."""
    num_match_pages: int = 0
    """Leading pages that HiCache has; num_match_pages * page_tokens < known tokens."""
    is_hit_damaged: bool = False
    """Whether a page of the match behind those that are used was found missing or wrong."""
    load_end: int = 0
    """Stored pages before this one are to be loaded as soon as there is room for that; 0 for none,
    or if that has begun."""
    was_matched: bool = False
    """Whether HiCache has answered since it began to wait; else nothing is known of what it has."""
    lease_id: str | None = None
    """Held from Matched until the load ends or the output does."""
    row: int | None = None
    """None until admission, and again once it is given back."""
    reserve: Reserve | None = None
    """Of the outputs that it stands for beside itself, while it has a row."""
    table: PageTable = dataclasses.field(default_factory=PageTable)
    """Of pages that it holds from admission until its last microbatch is complete."""
    is_counted: bool = False
    """Whether the last stage knows what penalties need of the row, if anything."""
    last_prefill: Prefill | None = None
    """Set with PREFILL."""
    first_prefill: Prefill | None = None
    """The one that gave the first token; later ones only repeat what a preemption lost."""
    prefill_started_s: float = 0.0
    """When prefill began; 0 before."""
    told_tokens: int = 0
    """Leading prompt tokens that were told as processed; a prefill that is repeated adds none."""
    num_prompt_logprobs: int = 0
    """Prompt tokens behind the first whose log-probabilities were told."""
    output_ids: list[int] = dataclasses.field(default_factory=list)
    """0 <= len(output_ids) <= max_new_tokens; the end token included."""
    digests: list[bytes] = dataclasses.field(init=False)
    """Of the leading full pages, as far as they were needed."""
    num_pages_stored: int = 0
    """Leading pages that are stored or were given to a store."""
    num_in_flight: int = 0
    """Microbatches naming the row that some stage has not acknowledged."""
    setbacks: Setbacks = dataclasses.field(default_factory=Setbacks)
    """How often it began again."""
    epoch: int | None = None
    """Of the route that it waits for or runs on; None while none stands."""
    expected_hit_tokens: int = 0
    """What that route held of it when it began to wait there; counted where there are several."""
    num_passed: int = 0
    """How many that come after it were admitted while it waited for more than they needed."""

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.spec.prompt_ids)
        self.digests = list(self.spec.digests)

    @property
    def request_id(self) -> str:
        """The caller's name for it."""
        return self.spec.request_id

    @property
    def rank(self) -> tuple[int, int, int]:
        """The one order of all outputs, the lowest is served first and leaves last.

        Of the highest priority the oldest.
        """
        return -self.spec.priority, self.arrival, self.child

    @property
    def is_new(self) -> bool:
        """Whether it has not begun, as far as its client can tell, and was never preempted."""
        return not (self.setbacks.has_any or self.output_ids)

    @property
    def prefill(self) -> Prefill:
        """Its prefill; in PREFILL there is one.

        Raises:
            InvariantViolated: there is none.
        """
        if self.last_prefill is None:
            raise InvariantViolated(f"{self.request_id} has no prefill")
        return self.last_prefill

    @property
    def children(self) -> range:
        """The outputs that it stands for: all of its request while there is no first token."""
        return range(self.child, self.child + (1 if self.output_ids else self.spec.num_outputs))

    @property
    def known_tokens(self) -> int:
        """Length of prompt and output so far."""
        return self.prompt_tokens + len(self.output_ids)

    @property
    def rows(self) -> list[int]:
        """Rows of the outputs that it stands for; none without a place on a route."""
        if self.row is None:
            return []
        return [self.row, *(self.reserve.rows if self.reserve else ())]

    @property
    def held_page_ids(self) -> list[int]:
        """All pages that it holds, with those that it keeps for outputs to come."""
        return self.table.page_ids + list(self.reserve.page_ids if self.reserve else ())

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether the log-probabilities of prompt tokens are still to come: no hit is used then."""
        is_asked = self.spec.prompt_top_logprobs is not None
        return is_asked and self.num_prompt_logprobs < self.prompt_tokens - 1

    def move(self, state: RequestState) -> None:
        """Change state.

        Raises:
            InvariantViolated: the table has no such transition.
        """
        if state not in _NEXT[self.state]:
            raise InvariantViolated(f"{self.request_id}: {self.state.value} -> {state.value}")
        self.state = state

    def most_hit_pages(self, page_tokens: int) -> int:
        """Return how many pages may come from any cache; never that of the last known token."""
        return 0 if self.needs_whole_prompt else (self.known_tokens - 1) // page_tokens

    def take_match(self, matched: Matched, *, page_tokens: int) -> None:
        """Note how much HiCache has, and wait for a place."""
        self.move(RequestState.QUEUED)
        self.was_matched = matched.is_known
        self.num_match_pages = max(0, min(matched.num_pages, self.most_hit_pages(page_tokens)))
        self.lease_id = matched.lease_id

    def take_lease(self) -> str | None:
        """Return the lease, for release, and forget it."""
        lease_id, self.lease_id = self.lease_id, None
        return lease_id

    def take_place(self, rows: Sequence[int], page_ids: Sequence[int], *, page_tokens: int) -> None:
        """Take rows and pages for all outputs that it stands for; each has as many of its own."""
        num_shared = self.prompt_tokens // page_tokens
        last = num_shared + (len(page_ids) - num_shared) // len(rows)
        self.row, self.table.page_ids = rows[0], list(page_ids[:last])
        if len(rows) > 1:
            self.reserve = Reserve(rows=tuple(rows[1:]), page_ids=tuple(page_ids[last:]))

    def start_prefill(self, prefill: Prefill, *, hit_pages: int, now_s: float) -> None:
        """Go on with the known tokens behind the hit."""
        self.move(RequestState.PREFILL)
        self.last_prefill = prefill
        self.num_pages_stored = self.num_match_pages if self.was_matched else hit_pages
        if self.is_hit_damaged:
            self.num_pages_stored = min(hit_pages, self.num_pages_stored)
        self.prefill_started_s = now_s

    def wait_again(self) -> None:
        """Go back to where a new request begins, with the output so far as more of a prompt."""
        self.setbacks = self.setbacks.with_preemption()
        self._begin_again()

    def wait_elsewhere(self) -> None:
        """Go back to where a new request begins, to wait for another route."""
        self._begin_again()

    def park(self, *, is_at_fault: bool) -> None:
        """Go back to where a new request begins, for the route is gone with all it has there.

        is_at_fault says that it may be the cause, if it ran.
        """
        if self.row is not None:
            news = self.told_tokens + self.num_prompt_logprobs + len(self.output_ids)
            self.setbacks = self.setbacks.with_recovery(is_at_fault=is_at_fault, news=news)
        self.row, self.num_in_flight = None, 0
        self.drop_pages()
        self.table.drop_host()
        self._begin_again()

    @property
    def left_tokens(self) -> tuple[int, int]:
        """The range of known tokens that are still to be sent to the stages, maybe empty."""
        if self.last_prefill is not None:
            return self.last_prefill.next_start, self.last_prefill.end
        return self.expected_hit_tokens, self.known_tokens

    def drop_pages(self) -> list[int]:
        """Return all pages that it holds, for release, and forget them and who knew of them."""
        held = self.table.drop() + list(self.reserve.page_ids if self.reserve else ())
        self.reserve, self.is_counted = None, False
        return held

    def take_seen(self) -> TokenCounts | None:
        """Return what penalties count of the known tokens, unless the last stage knows it."""
        if self.is_counted:
            return None
        self.is_counted = True
        if not self.spec.sampling.has_penalties:
            return None
        return count_tokens(self.token_ids(0, self.known_tokens))

    def token_ids(self, start: int, end: int) -> TokenIds:
        """Return prompt and output ids of positions [start, end); a view inside the prompt."""
        if end <= self.prompt_tokens:
            return self.spec.prompt_ids[start:end]
        first, last = max(start - self.prompt_tokens, 0), end - self.prompt_tokens
        output = np.array(self.output_ids[first:last], dtype=np.uint32)
        if start >= self.prompt_tokens:
            return output
        return np.concatenate((self.spec.prompt_ids[start:], output))

    def page_digest(self, index: int, page_tokens: int) -> bytes:
        """Return the digest of a full page whose tokens are all known; -1 gives the namespace."""
        if index >= len(self.digests):
            known = len(self.digests)
            ids = self.token_ids(known * page_tokens, (index + 1) * page_tokens)
            self.digests += extend_chain(self.page_digest(known - 1, page_tokens), ids, page_tokens)
        return self.digests[index] if index >= 0 else self.spec.namespace

    def leading_digests(self, num_pages: int, page_tokens: int) -> tuple[bytes, ...]:
        """Return the digests of the first pages, whose tokens are all known."""
        self.page_digest(num_pages - 1, page_tokens)
        return tuple(self.digests[:num_pages])

    def _begin_again(self) -> None:
        self.move(RequestState.WAITING)
        self.last_prefill = None
        self.was_matched = self.is_hit_damaged = False
        self.num_match_pages = self.load_end = self.num_passed = 0

    def eta_s(self, now_s: float) -> float:
        """Estimate the time until the prompt is computed, from its own rate so far."""
        if not self.prefill.num_done:
            raise InvariantViolated(f"{self.request_id}: no chunk is done")
        done = self.prefill.done_tokens
        rate_s = (now_s - self.prefill_started_s) / (done - self.prefill.start)
        return max(rate_s, 0.0) * (self.prompt_tokens - done)
