"""What the engine wants done. Pure values; the shell does them in the order given."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from chunkmesh.errors import ChunkMeshError
from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.pages import TokenIds
from chunkmesh.token_counts import TokenCounts
from scheduler.events import Sampling


class PlannedEntry(NamedTuple):
    """A part of one request in a microbatch.

    A tuple, as PlannedSample and Output are: one is made for each row of each step, and a frozen
    dataclass takes three times as long.
    """

    request_id: str
    row: int
    """The request's row on its route; reused after ReleaseRow."""
    start: int
    num_tokens: int
    new_page_ids: tuple[int, ...]
    """Pages that the row's table grows by, as far as this entry's last token needs them."""


class PlannedSample(NamedTuple):
    """One token to choose from the logits of an entry's last token."""

    entry: int
    row: int
    """The row whose output grows; with n outputs all first tokens come from one entry."""
    child: int
    """0 <= child < num_outputs."""
    position: int
    """Output position, from 0."""
    sampling: Sampling
    forbidden_ids: tuple[int, ...]
    seen: TokenCounts | None
    """With penalties in the row's first sample: prompt and output so far. Else None."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTargets:
    """Prompt tokens whose log-probabilities are wanted."""

    entry: int
    target_ids: TokenIds
    """The token behind each of the entry's first tokens, at least one."""
    top_logprobs: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendMicrobatch:
    """Give a microbatch to every stage."""

    epoch: int
    seq_no: int
    entries: tuple[PlannedEntry, ...]
    token_ids: TokenIds
    """Ids of all entries, concatenated; for the first stage."""
    samples: tuple[PlannedSample, ...]
    """For the last stage."""
    prompt_targets: tuple[PlannedTargets, ...] = ()
    """For the last stage."""
    predicted_ms: tuple[float, ...] = ()
    """Compute time that the latency model expects of each stage; empty without a model."""

    @property
    def num_tokens(self) -> int:
        """Rows of the activation."""
        return len(self.token_ids)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldPages:
    """What some stages need not load, since they still hold it (load_parts.py)."""

    lacking: tuple[int, ...]
    """The others."""
    num_pages: int
    """Leading pages of the load that lie in the pool where they will be."""
    num_host: int
    """How many of its host pages those that lack something have, too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendLoad:
    """Let every stage read pages into staging."""

    epoch: int
    load_id: int
    digests: tuple[bytes, ...]
    host_ids: tuple[int, ...] = ()
    """Where the first of them lie in host memory: those are not read from Redis."""
    timeout_ms: int = 0
    """When they end it by themselves with what they have read; 0 for never."""
    held: HeldPages | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendEndLoad:
    """Let every stage end a load with what it has read; the answer comes as Loaded."""

    epoch: int
    load_id: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendCommitLoad:
    """Let every stage copy a load's first pages from host memory and staging into the pool."""

    epoch: int
    load_id: int
    page_ids: tuple[int, ...]
    held: HeldPages | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendCancelLoad:
    """Let every stage drop a load."""

    epoch: int
    load_id: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageToStore:
    """A full page."""

    namespace: bytes
    digest: bytes
    parent: bytes
    page_index: int
    page_id: int
    """Where it lies: in the pool, or in host memory."""


Tier = Literal["device", "host"]
"""Where workers hold pages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendSavePages:
    """Let every stage copy pages of the pool to host memory, before whatever is sent later."""

    epoch: int
    digests: tuple[bytes, ...]
    page_ids: tuple[int, ...]
    """One for each digest, as for the next."""
    host_ids: tuple[int, ...]
    """Distinct."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendStore:
    """Let every stage write pages to Redis; what is not in turn is pinned until all have ended."""

    epoch: int
    store_id: int
    pages: tuple[PageToStore, ...]
    tier: Tier = "device"
    """Where they lie."""
    in_turn: bool = False
    """Whether stages copy them before whatever is sent later; always if they lie in host memory."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommitPages:
    """Tell HiCache that one stage has written pages for its layers."""

    epoch: int
    stage: int
    namespace: bytes
    pages: tuple[PageToStore, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendCopyPages:
    """Let every stage copy whole pages inside its pool, before whatever is sent later."""

    epoch: int
    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    """One for each source, distinct, and none of them a source."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendRelease:
    """Let every stage forget a row."""

    epoch: int
    row: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FenceStage:
    """Give up the worker of a stage: it is beyond its deadline."""

    epoch: int
    stage: int
    reason: str
    """Names the stage, its microbatch and the figures."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MatchPrefix:
    """Ask HiCache; the answer comes as Matched."""

    request_id: str
    digests: tuple[bytes, ...]
    """Only pages that leave at least the last known token to compute; at least one."""
    child: int = 0
    """Which output asks: after a preemption each asks for its own pages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckStored:
    """Ask HiCache what is stored of pages that nobody waits for; the answer comes as Checked."""

    digests: tuple[bytes, ...]
    """A prompt's leading pages; at least one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLease:
    """Tell HiCache that leased pages are no longer needed."""

    lease_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InvalidatePages:
    """Tell HiCache that what is stored of pages must not be used."""

    digests: tuple[bytes, ...]
    """At least one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Prefill went on."""

    request_id: str
    total: int
    cached: int
    processed: int
    chunk_index: int
    """Chunks done, >= 1."""
    chunks_planned: int
    """Chunks in all, >= chunk_index; a prediction until the last is sent."""
    eta_s: float
    """Until the prompt is computed, >= 0; 0 when it is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of consecutive prompt tokens; parts come in order, without gaps."""

    request_id: str
    start: int
    """Position of the first token, >= 1."""
    logprobs: TokenLogprobs


class Output(NamedTuple):
    """New output of a request; text may be empty."""

    request_id: str
    child: int
    """0 <= child < num_outputs."""
    token_ids: tuple[int, ...]
    text: str
    logprobs: TokenLogprobs | None = None
    """Of token_ids, if asked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An output ended; nothing more of it comes. Text held back came as an Output before."""

    request_id: str
    child: int
    """0 <= child < num_outputs; the request ends with the last of them."""
    reason: Literal["stop", "length", "abort"]
    matched_stop: str | None
    matched_token_id: int | None
    cached_tokens: int
    chunk_tokens: tuple[int, ...]
    """Tokens of each prefill chunk."""
    num_preemptions: int
    """How often it gave its pages to others and was resumed."""
    num_recoveries: int = 0
    """How often its route was lost and it was resumed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request ended with an error, with all of its outputs that had not ended."""

    request_id: str
    error: ChunkMeshError


Action = (
    SendMicrobatch
    | SendLoad
    | SendEndLoad
    | SendCommitLoad
    | SendCancelLoad
    | SendSavePages
    | SendStore
    | CommitPages
    | SendCopyPages
    | SendRelease
    | FenceStage
    | MatchPrefix
    | CheckStored
    | ReleaseLease
    | InvalidatePages
    | Progress
    | PromptLogprobs
    | Output
    | Finished
    | Failed
)
