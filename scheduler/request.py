"""One request on its way through the engine: its state, pages, chunks and output. Pure.

WAITING -> QUEUED -> LOADING -> PREFILL -> DECODE -> FINISHED
              |                    ^
              +--------------------+         FINISHED can follow every state.
"""

from __future__ import annotations

import dataclasses
import enum

import numpy as np

from chunkmesh.errors import InvariantViolated
from chunkmesh.pages import TokenIds, extend_chain
from scheduler.chunking import ChunkPlan
from scheduler.events import RequestSpec


class RequestState(enum.Enum):
    """Where a request stands."""

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
    FINISHED = "finished"
    """Its end was told; pages may still wait for microbatches in flight."""


_NEXT = {
    RequestState.WAITING: {RequestState.QUEUED, RequestState.FINISHED},
    RequestState.QUEUED: {RequestState.LOADING, RequestState.PREFILL, RequestState.FINISHED},
    RequestState.LOADING: {RequestState.PREFILL, RequestState.FINISHED},
    RequestState.PREFILL: {RequestState.DECODE, RequestState.FINISHED},
    RequestState.DECODE: {RequestState.FINISHED},
    RequestState.FINISHED: set[RequestState](),
}


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """Owner of everything that changes about one request; compared by identity."""

    spec: RequestSpec
    state: RequestState = RequestState.WAITING
    num_match_pages: int = 0
    """Leading pages that HiCache has; num_match_pages * page_tokens < prompt tokens."""
    lease_id: str | None = None
    """Held from Matched until the load ends or the request does."""
    row: int | None = None
    """None until admission, and again once it is given back."""
    page_ids: tuple[int, ...] = ()
    """For all positions that it can reach; held until its last microbatch is complete."""
    num_pages_named: int = 0
    """Pages that the stages' tables have; 0 until the first microbatch names the row."""
    chunks: ChunkPlan | None = None
    """Set with PREFILL."""
    prefill_started_s: float = 0.0
    """When prefill began; 0 before."""
    output_ids: list[int] = dataclasses.field(default_factory=list)
    """0 <= len(output_ids) <= max_new_tokens; the end token included."""
    digests: list[bytes] = dataclasses.field(init=False)
    """Of the leading full pages, as far as they were needed."""
    num_pages_stored: int = 0
    """Leading pages that came from the cache or were given to a store."""
    num_in_flight: int = 0
    """Microbatches naming the row that some stage has not acknowledged."""

    def __post_init__(self) -> None:
        self.digests = list(self.spec.digests)

    @property
    def request_id(self) -> str:
        """The caller's name for it."""
        return self.spec.request_id

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.spec.prompt_ids)

    @property
    def hit_tokens(self) -> int:
        """Leading tokens taken from the cache; a multiple of page_tokens, < prompt_tokens."""
        return self.chunks.start if self.chunks else 0

    def move(self, state: RequestState) -> None:
        """Change state.

        Raises:
            InvariantViolated: the table has no such transition.
        """
        if state not in _NEXT[self.state]:
            raise InvariantViolated(f"{self.request_id}: {self.state.value} -> {state.value}")
        self.state = state

    def take_lease(self) -> str | None:
        """Return the lease, for release, and forget it."""
        lease_id, self.lease_id = self.lease_id, None
        return lease_id

    def start_prefill(self, chunks: ChunkPlan, *, hit_pages: int, now_s: float) -> None:
        """Go on with the tokens behind the hit."""
        self.move(RequestState.PREFILL)
        self.chunks = chunks
        self.num_pages_stored = hit_pages
        self.prefill_started_s = now_s

    def take_chunk(self) -> Part:
        """Return the next chunk and count it as sent.

        Raises:
            InvariantViolated: there is none.
        """
        chunks = self.chunks
        if chunks is None or chunks.is_sent:
            raise InvariantViolated(f"{self.request_id}: no chunk is left")
        start, num_tokens = chunks.next_start, chunks.next_tokens
        chunks.num_sent += 1
        return Part(request=self, start=start, end=start + num_tokens)

    def decode_part(self) -> Part:
        """Return the step that computes the newest output token's KV and samples the next one."""
        end = self.prompt_tokens + len(self.output_ids)
        return Part(request=self, start=end - 1, end=end)

    def name_pages(self, num_pages: int) -> tuple[int, ...]:
        """Return what the stages' tables lack of the first num_pages; they have it from now on."""
        new_page_ids = self.page_ids[self.num_pages_named : num_pages]
        self.num_pages_named += len(new_page_ids)
        return new_page_ids

    def token_ids(self, start: int, end: int) -> TokenIds:
        """Return prompt and output ids of positions [start, end); a view inside the prompt."""
        prompt = self.spec.prompt_ids[start:end]
        if end <= self.prompt_tokens:
            return prompt
        first, last = max(start - self.prompt_tokens, 0), end - self.prompt_tokens
        return np.concatenate((prompt, np.array(self.output_ids[first:last], dtype=np.uint32)))

    def page_digest(self, index: int, page_tokens: int) -> bytes:
        """Return the digest of a full page whose tokens are all known; -1 gives the namespace."""
        if index >= len(self.digests):
            known = len(self.digests)
            ids = self.token_ids(known * page_tokens, (index + 1) * page_tokens)
            self.digests += extend_chain(self.page_digest(known - 1, page_tokens), ids, page_tokens)
        return self.digests[index] if index >= 0 else self.spec.namespace

    def eta_s(self, now_s: float) -> float:
        """Estimate the time until the prompt is computed, from its own rate so far."""
        if self.chunks is None or self.chunks.num_done == 0:
            raise InvariantViolated(f"{self.request_id}: no chunk is done")
        done = self.chunks.done_tokens
        rate_s = (now_s - self.prefill_started_s) / (done - self.chunks.start)
        return max(rate_s, 0.0) * (self.prompt_tokens - done)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Positions [start, end) of one request in one microbatch: a chunk, or a decode step."""

    request: Request
    start: int
    end: int
    """> start."""

    @property
    def is_chunk(self) -> bool:
        """Whether it is prefill."""
        return self.start < self.request.prompt_tokens

    @property
    def is_sampled(self) -> bool:
        """Whether a token is chosen behind it: never after a middle chunk."""
        return self.end >= self.request.prompt_tokens

    @property
    def output_position(self) -> int:
        """Output position of the token chosen behind it."""
        return self.end - self.request.prompt_tokens
