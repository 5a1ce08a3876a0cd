"""What the last stage reads out of the residual stream: chosen ids and log-probabilities.

The model stage calls it behind the last layer. It says nothing about which rows a microbatch
should hold; it checks that what the order wants is there.

Shapes: T rows, n rows that are sampled, D hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.logprobs import TokenLogprobs, join
from stage_worker.orders import Microbatch, PromptTargets
from stage_worker.sampler import Sampler
from stage_worker.stage import StageOutput
from stage_worker.token_logprobs import token_logprobs

_SLICE_ROWS = 1024
_SLICE_NUMBERS = 1 << 24
"""Of one array of logits: 64 MiB in float32, two of which are there at a time."""


def sampled_entries(microbatch: Microbatch) -> list[int]:
    """Return the entries whose last token gives logits, ascending.

    Raises:
        InvariantViolated: sampling rows or prompt targets do not fit the entries.
    """
    num_entries = len(microbatch.entries)
    entries = sorted({row.entry for row in microbatch.sampling})
    targeted = [targets.entry for targets in microbatch.prompt_targets]
    if len(set(targeted)) < len(targeted):
        raise InvariantViolated(f"several prompt targets for one entry: {targeted}")
    for entry in entries + targeted:
        if not 0 <= entry < num_entries:
            raise InvariantViolated(f"entry {entry} of a microbatch of {num_entries}")
    for targets in microbatch.prompt_targets:
        num_tokens = microbatch.entries[targets.entry].num_tokens
        if not 1 <= len(targets.target_ids) <= num_tokens:
            raise InvariantViolated(
                f"{len(targets.target_ids)} prompt targets for entry {targets.entry} "
                f"of {num_tokens} tokens"
            )
    return entries


def places(microbatch: Microbatch, entries: Sequence[int]) -> list[int]:
    """Return where among these entries that of each sampling row is."""
    place = {entry: index for index, entry in enumerate(entries)}
    return [place[row.entry] for row in microbatch.sampling]


class LogitsHead(Protocol):
    """Turns hidden rows into logits."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    def logits(self, hidden_nD: torch.Tensor) -> torch.Tensor:
        """Return logits [n, V], float32, on the device of the rows."""
        ...


class EntryRows(Protocol):
    """Where an entry's tokens are in the activation."""

    @property
    def first_row(self) -> int:
        """Row of its first token."""
        ...

    @property
    def last_row(self) -> int:
        """Row of its last token."""
        ...


class Readout:
    """Owns the head and the sampler."""

    def __init__(self, head: LogitsHead) -> None:
        self._head = head
        self._sampler = Sampler()
        self._slice_rows = max(1, min(_SLICE_ROWS, _SLICE_NUMBERS // head.vocab_size))

    def read(
        self, microbatch: Microbatch, parts: Sequence[EntryRows], hidden_TD: torch.Tensor
    ) -> StageOutput:
        """Return what a microbatch wants to know.

        hidden_TD is the residual stream behind the last layer and only read: all rows if there are
        prompt targets, else the last row of each of sampled_entries(microbatch).

        Raises:
            InvariantViolated: see Sampler.sample and token_logprobs.
        """
        prompt_logprobs = tuple(
            self._prompt_logprobs(targets, parts[targets.entry].first_row, hidden_TD)
            for targets in microbatch.prompt_targets
        )
        entries = sampled_entries(microbatch)
        if not entries:
            return StageOutput(prompt_logprobs=prompt_logprobs)
        hidden_nD = hidden_TD
        if microbatch.prompt_targets:
            last_rows = torch.tensor([parts[entry].last_row for entry in entries])
            hidden_nD = hidden_TD.index_select(0, last_rows.to(hidden_TD.device))
        sampled = self.choose(microbatch, self._head.logits(hidden_nD), places(microbatch, entries))
        return dataclasses.replace(sampled, prompt_logprobs=prompt_logprobs)

    def choose(
        self, microbatch: Microbatch, logits_nV: torch.Tensor, places: Sequence[int]
    ) -> StageOutput:
        """Return the tokens of the sampling rows; the logits of each are logits_nV[place].

        Raises:
            InvariantViolated: see Sampler.sample.
        """
        sampled = self._sampler.sample(microbatch.sampling, logits_nV, places)
        return StageOutput(
            sampled_ids=sampled.ids,
            sampled_logprobs=sampled.logprobs,
            without_choice=sampled.without_choice,
        )

    def release(self, row: int) -> None:
        """Forget a request's row."""
        self._sampler.release(row)

    def clear(self) -> None:
        """Forget all rows."""
        self._sampler.clear()

    def _prompt_logprobs(
        self, targets: PromptTargets, first_row: int, hidden_TD: torch.Tensor
    ) -> TokenLogprobs:
        """Apply the head slice by slice: logits of a whole chunk may be gigabytes."""
        slices = []
        for start in range(0, len(targets.target_ids), self._slice_rows):
            ids = targets.target_ids[start : start + self._slice_rows]
            row = first_row + start
            logits_nV = self._head.logits(hidden_TD[row : row + len(ids)])
            slices.append(token_logprobs(logits_nV, ids, targets.top_logprobs))
        return join(slices)
