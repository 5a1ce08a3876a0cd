"""Chunks that a client has chosen for its own prompt, so that sizes can be measured. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from chunkmesh.errors import InvalidRequest

MAX_CHUNKS = 4096
"""Of a prompt with given chunks; more would only keep everybody else waiting."""
_FIELD = "chunk_tokens"


def given_ends(chunk_tokens: Sequence[int], start: int, end: int) -> tuple[int, ...]:
    """Return the ends of the chunks of [start, end): the last size is repeated as often as needed.

    There is at least one size, and all are >= 1.
    """
    sizes = itertools.chain(chunk_tokens, itertools.repeat(chunk_tokens[-1]))
    ends = [start]
    while ends[-1] < end:
        ends.append(min(ends[-1] + next(sizes), end))
    return tuple(ends[1:])


def check_chunk_tokens(chunk_tokens: Sequence[int], *, prompt_tokens: int, max_tokens: int) -> None:
    """Refuse chunks that no microbatch can hold, or too many of them.

    Raises:
        InvalidRequest: names size and limit.
    """
    for index, size in enumerate(chunk_tokens):
        if not 1 <= size <= max_tokens:
            raise InvalidRequest(
                f"{_FIELD}[{index}] is {size}, must be in [1, {max_tokens}]: a microbatch of this"
                " mesh holds no more",
                field=_FIELD,
            )
    if not chunk_tokens:
        return
    rest = max(0, prompt_tokens - sum(chunk_tokens))
    num_chunks = len(chunk_tokens) + -(-rest // chunk_tokens[-1])
    if num_chunks > MAX_CHUNKS:
        raise InvalidRequest(
            f"{_FIELD} cuts {prompt_tokens} tokens into {num_chunks} chunks, limit {MAX_CHUNKS}",
            field=_FIELD,
        )
