"""What the engine hears, and what a request is when it arrives. Pure values."""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.pages import TokenIds
from scheduler.latency_model import PipelineLatency
from scheduler.pipeline_time import NO_LINK, LinkTime


class TextSink(Protocol):
    """Turns one request's output ids into text and looks for its stop strings. Pure, no I/O."""

    matched_stop: str | None
    """The stop string that has matched, if one has."""

    def push(self, token_id: int) -> str:
        """Take the next output id; return the text that may be sent now, for good."""
        ...

    def flush(self) -> str:
        """Return what was held back, at the end of the output."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen; all values checked at the door."""

    temperature: float
    """Finite, >= 0; 0 means greedy."""
    top_p: float
    """In (0, 1]."""
    top_k: int
    """>= 0; 0 keeps all."""
    min_p: float
    """In [0, 1]."""
    seed: int
    """0 <= seed < 2**64."""
    frequency_penalty: float = 0.0
    """In [-2, 2]; prompt and output count, as for the next two."""
    presence_penalty: float = 0.0
    """In [-2, 2]."""
    repetition_penalty: float = 1.0
    """In (0, 10]; 1 changes nothing."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids, each below the vocabulary size and at most once, and what is added to their logits."""
    top_logprobs: int | None = None
    """0 <= top_logprobs <= 20 most likely ids to tell with each token's log-probability, if any."""

    @property
    def has_penalties(self) -> bool:
        """Whether the ids seen so far matter."""
        penalties = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """The immutable part of a request."""

    request_id: str
    prompt_ids: TokenIds
    """At least one id, each below the vocabulary size."""
    namespace: bytes
    """Parent digest of the first page, 32 bytes."""
    digests: tuple[bytes, ...]
    """One for each full page of the prompt."""
    max_new_tokens: int
    """>= 1; prompt + max_new_tokens fits the context."""
    asked_new_tokens: int | None = None
    """What the client asked for, if that was more; only for what it is told."""
    min_new_tokens: int
    """0 <= min_new_tokens <= max_new_tokens."""
    end_ids: frozenset[int]
    """Ids that end the output."""
    sampling: Sampling
    priority: int = 0
    """-100 <= priority <= 100; higher goes first."""
    user: str = ""
    """Whose it is, which limits and fair turns go by; "" while nobody is told apart."""
    texts: tuple[TextSink, ...]
    """One for each output, >= 1; there are as many outputs."""
    prompt_top_logprobs: int | None = None
    """0 <= n <= 20 most likely ids to tell with the prompt's log-probabilities, if any; then no hit
    is used."""
    chunk_tokens: tuple[int, ...] = ()
    """Sizes of the prompt's chunks, >= 1, the last one repeated; empty leaves it to the plan."""

    @property
    def num_outputs(self) -> int:
        """Outputs to make of the one prompt, >= 1."""
        return len(self.texts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteFormed:
    """One more route stands; others stay as they are."""

    epoch: int
    """>= 1, never used before; of routes that form side by side the later may stand first."""
    num_stages: int
    num_pages: int
    """Page ids are 0 <= id < num_pages on every stage."""
    latency: PipelineLatency | None = None
    """What microbatches take on its stages; None if that is not known well enough to plan with."""
    page_bytes: tuple[int, ...] = ()
    """What a page takes on each stage; empty if that is not known."""
    num_host_pages: int = 0
    """Host page ids are 0 <= id < num_host_pages on every stage."""
    pool_ids: tuple[str, ...] = ()
    """Names the memory of each stage's pages: the same name, the same contents. Empty says that all
    is new."""
    chunk_alignment_tokens: int = 0
    """Chunks of a multiple of it keep all of each stage's device busy; 0 if no length is better."""
    link: LinkTime = NO_LINK
    """Of its slowest link, as far as that is known."""
    is_on_gpus: bool = False
    """Whether all of its stages compute on GPUs: then they are soon late (stage_deadlines.py)."""
    fingerprint: bytes = b""
    """Of the model's weights; empty if that is not known."""

    @property
    def known_page_bytes(self) -> tuple[int, ...]:
        """What a page takes on each stage, 0 where that is not known."""
        return self.page_bytes or (0,) * self.num_stages


LossCause = Literal["ended", "silent", "fenced", "fault", "left"]
"""What one of the workers did: its stream ended, it said nothing, it was beyond a deadline, it
could not go on, or it had said that it leaves."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteLost:
    """A route is gone; nothing of it will be heard again."""

    epoch: int
    reason: str
    cause: LossCause = "ended"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteAwaited:
    """No route stands; requests may wait for one. Comes again whenever the prospect changes."""

    wait_s: float
    """From now on, >= 0."""
    reason: str
    """Why none stands, in words."""
    is_announced: bool = False
    """Whether new requests may wait as well."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A request passed the door."""

    spec: RequestSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """HiCache answered MatchPrefix, or there is no answer: that is a match of 0 pages."""

    request_id: str
    num_pages: int
    lease_id: str | None
    child: int = 0
    """As asked."""
    is_known: bool = True
    """Whether HiCache did answer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """HiCache answered CheckStored, or there is no answer."""

    last_digest: bytes
    """Of the pages that were asked for."""
    num_pages: int | None
    """Leading pages stored for all layers; None without an answer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One stage has read the first num_pages of a load into staging."""

    epoch: int
    stage: int
    load_id: int
    num_pages: int
    num_host_pages: int = 0
    """Of those, how many its own host memory had."""
    num_bytes: int = 0
    """What it has read from Redis."""
    took_s: float = 0.0
    """Since it was told to."""
    is_damaged: bool = False
    """Whether a page was missing or wrong; else those behind num_pages may still be stored."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """One stage has finished a microbatch."""

    epoch: int
    stage: int
    seq_no: int
    compute_ms: float = 0.0
    """How long the stage computed; 0 if it does not say."""
    sampled_ids: tuple[int, ...] = ()
    """Last stage only: one id a sampling row."""
    sampled_logprobs: tuple[TokenLogprobs, ...] = ()
    """Last stage only: one for each sampling row that asked, in order."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Last stage only: one for each of the microbatch's prompt targets, in order."""
    without_choice: tuple[int, ...] = ()
    """Last stage only: indices into sampled_ids of those that mean nothing, because the logits
    leave nothing to choose."""
    restored_bytes: int = 0
    """What the stage has copied from host memory into its pool since the microbatch before."""
    restore_s: float = 0.0
    """How long that took."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One stage has ended a store; indices of the pages that it wrote."""

    epoch: int
    stage: int
    store_id: int
    stored: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The client gave up (gone), or somebody called Abort."""

    request_id: str
    cause: Literal["gone", "abort"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed; deadlines are looked at."""

    deaf_s: float = 0.0
    """How long the scheduler itself stood still since the last one, >= 0: nobody's lateness."""


Event = (
    RouteFormed
    | RouteLost
    | RouteAwaited
    | Arrived
    | Matched
    | Checked
    | Loaded
    | Acked
    | Stored
    | Cancelled
    | Tick
)
