"""What the scheduler tells a stage, as plain values. Pure."""

from __future__ import annotations

import dataclasses
from typing import Self

import numpy as np
import numpy.typing as npt

from chunkmesh.token_counts import TokenCounts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A part of one request in a microbatch: a prefill chunk or a decode token."""

    row: int
    """The request's row on its route."""
    start: int
    """Position of the first token, >= 0; KV of all earlier positions is in the row's pages."""
    num_tokens: int
    """>= 1."""
    new_page_ids: tuple[int, ...]
    """Pages that the row's page table grows by before this entry runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Makes ids that a row has seen less likely."""

    frequency: float
    """Subtracted from a logit for each time its id was seen."""
    presence: float
    """Subtracted once."""
    repetition: float
    """> 0; divides a positive and multiplies a negative logit, before the other two."""
    seen: TokenCounts | None
    """Prompt and output so far, in the row's first sampling row; afterwards the stage counts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """One token to choose from the logits of an entry's last token."""

    entry: int
    """Index into Microbatch.entries."""
    row: int
    """The request's row whose output grows; not always the entry's."""
    seed: int
    """0 <= seed < 2**64."""
    child: int
    """Which of a request's outputs, from 0."""
    position: int
    """Output position, from 0; random numbers are Philox(seed, child, position)."""
    temperature: float
    """0 means greedy."""
    top_p: float
    """In (0, 1]; 1 keeps all."""
    top_k: int
    """0 keeps all; larger than the vocabulary keeps all."""
    min_p: float
    """In [0, 1]; 0 keeps all."""
    forbidden_ids: tuple[int, ...] = ()
    """Ids that must not be chosen."""
    penalties: Penalties | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids and what is added to their logits, after the penalties."""
    top_logprobs: int | None = None
    """How many most likely ids to tell with the log-probability of the chosen one; None for none
    of both."""

    @classmethod
    def likeliest(cls, entry: int, row: int) -> Self:
        """Choose the most likely token of an entry, and nothing more."""
        return cls(
            entry=entry,
            row=row,
            seed=0,
            child=0,
            position=0,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptTargets:
    """Prompt tokens whose log-probabilities are wanted."""

    entry: int
    """Index into Microbatch.entries."""
    target_ids: npt.NDArray[np.uint32]
    """The token behind each of the entry's first tokens, at least one."""
    top_logprobs: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Chunks and decode tokens that cross the pipeline together."""

    epoch: int
    seq_no: int
    """Order in the epoch, from 0 without gaps."""
    entries: tuple[Entry, ...]
    """At least one; rows are distinct."""
    token_ids: npt.NDArray[np.uint32] | None
    """First stage only: ids of all entries, concatenated."""
    sampling: tuple[SamplingRow, ...]
    """Last stage only."""
    prompt_targets: tuple[PromptTargets, ...] = ()
    """Last stage only; at most one for each entry."""

    @property
    def num_tokens(self) -> int:
        """Rows of the activation."""
        return sum(entry.num_tokens for entry in self.entries)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StorePage:
    """A full page of the pool to be written to Redis."""

    namespace: bytes
    """First link of its digest chain."""
    digest: bytes
    parent: bytes
    page_index: int
    """Index of the page in its prompt, from 0."""
    page_id: int
    """Where it lies in the pool."""
