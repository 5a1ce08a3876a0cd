"""What an acknowledged microbatch has brought, dealt out to its parts. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from chunkmesh.logprobs import TokenLogprobs
from scheduler.events import Acked
from scheduler.part import Part


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """One token of the last stage."""

    token_id: int
    logprobs: TokenLogprobs | None
    """Of this token, if asked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """What the last stage has told of one part."""

    part: Part
    tokens: tuple[SampledToken, ...]
    """part.num_samples, in the order of children."""
    prompt_logprobs: TokenLogprobs | None
    """Of part.num_targets prompt tokens, if any."""


def deal(parts: tuple[Part, ...], acked: Acked) -> Iterator[PartResult]:
    """Yield the result of each part; their numbers were checked before."""
    ids, logprobs = iter(acked.sampled_ids), iter(acked.sampled_logprobs)
    prompt_logprobs = iter(acked.prompt_logprobs)
    for part in parts:
        is_told = part.num_sampled_logprobs > 0
        yield PartResult(
            part=part,
            tokens=tuple(
                SampledToken(token_id=next(ids), logprobs=next(logprobs) if is_told else None)
                for _ in range(part.num_samples)
            ),
            prompt_logprobs=next(prompt_logprobs) if part.num_targets else None,
        )
