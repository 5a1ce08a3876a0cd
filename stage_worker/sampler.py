"""Chooses one token id for each sampling row of a microbatch.

From the model's logits on, in float32 and in this order: log-probabilities are taken (of what the
model says, not of what settings make of it); penalties on the ids that the row has seen in prompt
and output: repetition (a positive logit is divided, a negative one multiplied), then frequency
times count and presence are subtracted; logit_bias is added; forbidden ids are ruled out; then the
most likely id is taken, the lowest of equal ones, or with a temperature one is drawn (see
candidates) with Philox(seed, child, position).
A row's id depends on its logits, settings, seed, output position and seen ids, never on what else
is in the batch. Logits without a distribution (NaN, plus infinity, nothing above minus infinity)
come of broken weights, or of activations beyond a narrow type's range: no token is right then, and
the row is told as one without a choice.

Shapes: n rows of logits, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.logprobs import TokenLogprobs
from stage_worker.candidates import draw
from stage_worker.orders import SamplingRow
from stage_worker.philox import uniform
from stage_worker.seen_tokens import SeenTokens
from stage_worker.token_logprobs import token_logprobs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What was chosen for some sampling rows, in their order."""

    ids: tuple[int, ...]
    """One for each row."""
    logprobs: tuple[TokenLogprobs, ...]
    """One for each row with top_logprobs, of one token."""
    without_choice: tuple[int, ...] = ()
    """Indices of rows whose logits leave nothing to choose; their id is 0 and means nothing."""


class Sampler:
    """Owner of what rows with penalties have seen."""

    def __init__(self) -> None:
        self._seen = SeenTokens()

    def sample(
        self, rows: Sequence[SamplingRow], logits_nV: torch.Tensor, places: Sequence[int]
    ) -> Sampled:
        """Choose a token for each row; its logits, which are only read, are logits_nV[place].

        Raises:
            InvariantViolated: ids outside the vocabulary, or penalties of a row whose seen tokens
                were never told.
        """
        largest_n, likeliest_n = (found.tolist() for found in logits_nV.max(dim=1))
        ids = []
        logprobs = []
        without_choice = []
        for index, (row, place) in enumerate(zip(rows, places, strict=True)):
            token_id = self._choose(row, logits_nV[place], largest_n[place], likeliest_n[place])
            if token_id is None:
                without_choice.append(index)
                token_id = 0
            ids.append(token_id)
            if row.top_logprobs is not None:
                chosen = np.array([token_id])
                logprobs.append(
                    token_logprobs(logits_nV[place : place + 1], chosen, row.top_logprobs)
                )
        return Sampled(
            ids=tuple(ids), logprobs=tuple(logprobs), without_choice=tuple(without_choice)
        )

    def release(self, row: int) -> None:
        """Forget what a row has seen."""
        self._seen.release(row)

    def clear(self) -> None:
        """Forget what all rows have seen."""
        self._seen.clear()

    def _choose(
        self, row: SamplingRow, logits_V: torch.Tensor, largest: float, likeliest: int
    ) -> int | None:
        """Return the id for a row whose largest logit is known, and where it is; None for none."""
        if not math.isfinite(largest):
            return None
        scores_V = logits_V
        if row.penalties is not None or row.logit_bias or row.forbidden_ids:
            scores_V = self._adjusted(row, logits_V)
            best = scores_V.max(dim=0)
            largest, likeliest = float(best.values), int(best.indices)
            if not math.isfinite(largest):
                return None
        token_id = likeliest
        if row.temperature > 0:
            point = uniform(row.seed, row.child, row.position)
            token_id = draw(scores_V.float(), largest, row, point)
        if row.penalties is not None:
            self._seen.add(row.row, token_id)
        return token_id

    def _adjusted(self, row: SamplingRow, logits_V: torch.Tensor) -> torch.Tensor:
        """Return a copy of the logits after penalties, bias and forbidden ids."""
        scores_V = logits_V.to(torch.float32, copy=True)
        if row.penalties is not None:
            if row.penalties.seen is not None:
                self._seen.begin(row.row, row.penalties.seen)
            self._seen.penalise(scores_V, row, row.penalties)
        if row.logit_bias:
            ids, biases = zip(*row.logit_bias, strict=True)
            _check_ids(row, ids, scores_V)
            index = torch.tensor(ids, device=scores_V.device)
            scores_V.index_add_(0, index, torch.tensor(biases, device=scores_V.device))
        if row.forbidden_ids:
            _check_ids(row, row.forbidden_ids, scores_V)
            index = torch.tensor(row.forbidden_ids, device=scores_V.device)
            scores_V.index_fill_(0, index, -torch.inf)
        return scores_V


def _check_ids(row: SamplingRow, ids: Sequence[int], scores_V: torch.Tensor) -> None:
    if max(ids) >= len(scores_V):
        raise InvariantViolated(
            f"row {row.row} names id {max(ids)} of a vocabulary of {len(scores_V)}"
        )
