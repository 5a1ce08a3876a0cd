"""What an acknowledged microbatch has brought, dealt out to its parts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chunkmesh.logprobs import TokenLogprobs
from scheduler.events import Acked
from scheduler.part import Part


class PartResult(NamedTuple):
    """What the last stage has told of one part.

    A tuple, because one is made for each row of each step: a frozen dataclass takes three times as
    long.
    """

    part: Part
    token_ids: tuple[int, ...]
    """part.num_samples, in the order of children."""
    sampled_logprobs: tuple[TokenLogprobs, ...]
    """One for each of token_ids, or none."""
    prompt_logprobs: TokenLogprobs | None
    """Of part.num_targets prompt tokens, if any."""
    is_whole: bool
    """Whether each of token_ids was chosen; else the model gave nothing to choose from."""


def deal(parts: tuple[Part, ...], acked: Acked) -> Iterator[PartResult]:
    """Yield the result of each part; their numbers were checked before."""
    first_id = first_logprobs = 0
    prompt_logprobs = iter(acked.prompt_logprobs)
    without_choice = frozenset(acked.without_choice)
    for part in parts:
        last_id = first_id + part.num_samples
        last_logprobs = first_logprobs + part.num_sampled_logprobs
        yield PartResult(
            part,
            acked.sampled_ids[first_id:last_id],
            acked.sampled_logprobs[first_logprobs:last_logprobs],
            next(prompt_logprobs) if part.num_targets else None,
            not without_choice or without_choice.isdisjoint(range(first_id, last_id)),
        )
        first_id, first_logprobs = last_id, last_logprobs
