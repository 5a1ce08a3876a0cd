"""What one output has in one microbatch: a chunk or a decode step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from chunkmesh.errors import InvariantViolated
from scheduler.latency_model import Work
from scheduler.request import Request


class Part(NamedTuple):
    """Positions [start, end) of one output in one microbatch.

    A tuple, as one is made for each row of each step.
    """

    request: Request
    start: int
    end: int
    """> start."""
    is_chunk: bool
    """Whether it is prefill."""
    num_samples: int
    """Tokens chosen behind it: none after a middle chunk; one for each of the request's outputs
    where a prompt ends for the first time, with consecutive children; else one."""
    num_targets: int = 0
    """Prompt tokens from start + 1 on whose log-probabilities it brings."""

    @property
    def output_position(self) -> int:
        """Output position of the tokens chosen behind it."""
        return self.end - self.request.prompt_tokens

    @property
    def num_sampled_logprobs(self) -> int:
        """How many of its samples are told with their log-probabilities."""
        return 0 if self.request.spec.sampling.top_logprobs is None else self.num_samples


def take_chunk(request: Request, end: int) -> Part:
    """Return the next chunk of an output, up to end, and count it as sent.

    Raises:
        InvariantViolated: it is empty or beyond what is known.
    """
    prefill = request.prefill
    start = prefill.next_start
    if not start < end <= prefill.end:
        raise InvariantViolated(f"{request.request_id}: chunk [{start},{end}) of {prefill.end}")
    prefill.send(end)
    return Part(
        request=request,
        start=start,
        end=end,
        is_chunk=True,
        num_samples=len(request.children) if prefill.is_sent else 0,
        num_targets=_num_targets(request, start, end),
    )


def decode_step(request: Request) -> Part:
    """Return the step that computes the newest output token's KV and samples the next one."""
    end = request.known_tokens
    return Part(request=request, start=end - 1, end=end, is_chunk=False, num_samples=1)


def work_of(parts: Iterable[Part]) -> Work:
    """Return what parts ask of a stage together."""
    prefix_tokens = new_tokens = pairs = num_rows = row_tokens = 0
    for part in parts:
        start, end = part.start, part.end
        if part.is_chunk:
            prefix_tokens += start
            new_tokens += end - start
            pairs += end * end - start * start
        else:
            num_rows += 1
            row_tokens += end
    return Work(
        prefix_tokens=prefix_tokens,
        new_tokens=new_tokens,
        pairs=pairs,
        num_rows=num_rows,
        row_tokens=row_tokens,
    )


def _num_targets(request: Request, start: int, end: int) -> int:
    """Return how many prompt tokens a chunk predicts; 0 if none of them is news."""
    last = min(end + 1, request.prompt_tokens)
    is_news = request.needs_whole_prompt and last - 1 > request.num_prompt_logprobs
    return last - (start + 1) if is_news else 0
