"""Checks a request at the door and fills in its defaults. Pure: plain values in, plain values out.

Every refusal is an InvalidRequest that names the field, the value and the limit. Prompts may hold
a million ids, so they are looked at with numpy only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from chunkmesh.errors import InvalidRequest
from chunkmesh.grpc_options import MAX_MESSAGE_BYTES
from chunkmesh.pages import TokenIds
from scheduler.admission import named_new_tokens, new_tokens_that_fit
from scheduler.events import Sampling
from scheduler.sampling_params import (
    GivenParams,
    SamplingDefaults,
    check_num_outputs,
    check_sampling,
    check_top_logprobs,
)

MAX_REQUEST_ID_CHARS = 128
MAX_PRIORITY = 100
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 256
MAX_DETOKENIZED_IDS = 1 << 16
DEFAULT_MAX_NEW_TOKENS = 128

_IDS_AT_ONCE = 1 << 14
_TOKEN_BYTES = 20
"""Room that one output token may need in the complete message for its id, text and probability."""
_TOP_BYTES = 8
"""And for each of the most likely ids at its position."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What requests are measured against."""

    vocab_size: int
    context_length: int
    """Longest prompt and output together, in tokens."""
    eos_ids: frozenset[int]
    """The model's own end tokens."""
    defaults: SamplingDefaults = dataclasses.field(default_factory=SamplingDefaults)
    max_user_priority: int = MAX_PRIORITY
    """Highest that somebody who is no operator may ask for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KvPoolSize:
    """The pages that one request could have at most: all of a route's."""

    num_pages: int
    page_tokens: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckedParams:
    """SamplingParams with every value present and within its limits."""

    sampling: Sampling
    max_new_tokens: int
    """>= 1; prompt + max_new_tokens fits the context."""
    asked_new_tokens: int | None
    """What the client asked for, if that was more."""
    min_new_tokens: int
    """0 <= min_new_tokens <= max_new_tokens."""
    stop: tuple[str, ...]
    end_ids: frozenset[int]
    skip_special_tokens: bool
    num_outputs: int
    """>= 1."""
    prompt_top_logprobs: int | None
    """Most likely ids to tell with the prompt's log-probabilities, if those are wanted."""


def check_request_id(request_id: str) -> None:
    """Refuse an id that is too long or not printable; an empty one is the caller's to replace.

    It is shown in the terminals of others.
    """
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"request_id has {len(request_id)} characters, limit {MAX_REQUEST_ID_CHARS}",
            field="request_id",
        )
    if not request_id.isprintable():
        raise InvalidRequest(
            f"request_id is {request_id!a}, must be printable characters", field="request_id"
        )


def check_priority(priority: int, door: Door, *, is_operator: bool) -> None:
    """Refuse a priority that is out of range, or too high for a user."""
    if abs(priority) > MAX_PRIORITY:
        raise InvalidRequest(
            f"priority is {priority}, must be in [{-MAX_PRIORITY}, {MAX_PRIORITY}]",
            field="priority",
        )
    if priority > door.max_user_priority and not is_operator:
        raise InvalidRequest(
            f"priority is {priority}, at most {door.max_user_priority} for users here"
            " (--max-user-priority)",
            field="priority",
        )


def check_text(text: str) -> None:
    """Refuse an empty text prompt, also where the tokenizer would add a BOS token to it."""
    if not text:
        raise InvalidRequest("text is empty, must hold at least one character", field="text")


def parse_ids_le(data: bytes) -> TokenIds:
    """Read little-endian unsigned 32-bit ids; the result is a read-only view of data."""
    if len(data) % 4:
        raise InvalidRequest(
            f"input_ids_le has {len(data)} bytes, must be a multiple of 4", field="input_ids_le"
        )
    return np.frombuffer(data, dtype="<u4").astype(np.uint32, copy=False)


def parse_ids(ids: Sequence[int]) -> TokenIds:
    """Copy ids of a protobuf field, each already within 32 bits.

    In slices, for numpy does not let other threads run while it iterates.
    """
    parsed = np.empty(len(ids), dtype=np.uint32)
    for first in range(0, len(ids), _IDS_AT_ONCE):
        part = ids[first : first + _IDS_AT_ONCE]
        parsed[first : first + len(part)] = np.fromiter(part, dtype=np.uint32, count=len(part))
    return parsed


def check_prompt(ids: TokenIds, door: Door, *, field: str) -> None:
    """Refuse a prompt that is empty, leaves no room for a new token, or has an unknown id.

    field is the request field that the prompt came from.
    """
    if len(ids) == 0:
        raise InvalidRequest(f"{field} gives an empty prompt, at least 1 token needed", field=field)
    if len(ids) >= door.context_length:
        raise InvalidRequest(
            f"the prompt has {len(ids)} tokens; the context holds {door.context_length}, "
            f"and at least 1 of them must be left for the output",
            field=field,
        )
    if int(ids.max()) >= door.vocab_size:
        index = int(np.argmax(ids >= door.vocab_size))
        raise InvalidRequest(
            f"{field}[{index}] is {int(ids[index])}, must be below the vocabulary size "
            f"{door.vocab_size}",
            field=field,
        )


def check_token_ids(ids: Sequence[int], door: Door) -> None:
    """Refuse more ids than are decoded in one call, or one that is unknown."""
    if len(ids) > MAX_DETOKENIZED_IDS:
        raise InvalidRequest(f"{len(ids)} ids, limit {MAX_DETOKENIZED_IDS}", field="ids")
    for index, token_id in enumerate(ids):
        if token_id >= door.vocab_size:
            raise InvalidRequest(
                f"ids[{index}] is {token_id}, must be below the vocabulary size {door.vocab_size}",
                field="ids",
            )


def check_params(
    given: GivenParams,
    door: Door,
    *,
    prompt_tokens: int,
    drawn_seed: int,
    pool: KvPoolSize | None = None,
) -> CheckedParams:
    """Check everything but the prompt, which was checked before and has prompt_tokens tokens.

    drawn_seed is used if the client sent no seed. max_new_tokens is cut to what the context
    leaves; a default also to what a pool, if known, can hold, while a wish is left to admission,
    which refuses it.
    """
    num_outputs = check_num_outputs(given)
    top_logprobs = check_top_logprobs(given, door.vocab_size)
    room = door.context_length - prompt_tokens
    if given.max_new_tokens is None and pool is not None:
        fits = new_tokens_that_fit(
            prompt_tokens,
            num_outputs=num_outputs,
            num_pages=pool.num_pages,
            page_tokens=pool.page_tokens,
        )
        room = max(1, min(room, fits))
    if given.until_full and given.logprobs:
        room = min(room, _most_told_tokens(top_logprobs))
    max_new, min_new = _check_lengths(given, room)
    asked = given.max_new_tokens if max_new != given.max_new_tokens else None
    _check_stop(given.stop)
    _check_stop_ids(given.stop_token_ids, door.vocab_size)
    eos_ids: frozenset[int] = frozenset() if given.ignore_eos else door.eos_ids
    if given.logprobs:
        _check_complete_bytes(max_new, asked, top_logprobs)
    return CheckedParams(
        sampling=check_sampling(
            given,
            door.defaults,
            vocab_size=door.vocab_size,
            drawn_seed=drawn_seed,
            top_logprobs=top_logprobs,
        ),
        max_new_tokens=max_new,
        asked_new_tokens=asked,
        min_new_tokens=min_new,
        stop=tuple(dict.fromkeys(given.stop)),
        end_ids=eos_ids | frozenset(given.stop_token_ids),
        skip_special_tokens=given.skip_special_tokens is not False,
        num_outputs=num_outputs,
        prompt_top_logprobs=top_logprobs if given.prompt_logprobs else None,
    )


def _check_complete_bytes(max_new_tokens: int, asked: int | None, top_logprobs: int) -> None:
    """Refuse an output whose log-probabilities no complete message could carry at the end."""
    most_tokens = _most_told_tokens(top_logprobs)
    if max_new_tokens > most_tokens:
        raise InvalidRequest(
            f"{named_new_tokens(max_new_tokens, asked)} with logprobs and {top_logprobs} "
            f"top_logprobs, of which one message holds at most {most_tokens} tokens",
            field="sampling_params.top_logprobs",
        )


def _most_told_tokens(top_logprobs: int) -> int:
    """Return of how many tokens one message holds the log-probabilities."""
    return MAX_MESSAGE_BYTES // (_TOKEN_BYTES + _TOP_BYTES * top_logprobs)


def _check_lengths(given: GivenParams, room: int) -> tuple[int, int]:
    """Return (max_new_tokens, min_new_tokens); room >= 1 is what the prompt leaves."""
    if given.until_full and given.max_new_tokens is not None:
        raise InvalidRequest(
            f"until_full with max_new_tokens {given.max_new_tokens}: they exclude each other",
            field="sampling_params.until_full",
        )
    default = room if given.until_full else DEFAULT_MAX_NEW_TOKENS
    wanted = default if given.max_new_tokens is None else given.max_new_tokens
    if wanted < 1:
        raise InvalidRequest(
            f"max_new_tokens is {wanted}, must be at least 1",
            field="sampling_params.max_new_tokens",
        )
    max_new = min(wanted, room)
    min_new = given.min_new_tokens or 0
    if not 0 <= min_new <= max_new:
        raise InvalidRequest(
            f"min_new_tokens is {min_new}, must be at most {max_new}: max_new_tokens is {wanted} "
            f"and the prompt leaves {room}",
            field="sampling_params.min_new_tokens",
        )
    return max_new, min_new


def _check_stop(stop: tuple[str, ...]) -> None:
    field = "sampling_params.stop"
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop has {len(stop)} strings, limit {MAX_STOP_STRINGS}", field=field)
    for index, text in enumerate(stop):
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            raise InvalidRequest(
                f"stop[{index}] has {len(text)} characters, must have 1 to {MAX_STOP_CHARS}",
                field=field,
            )


def _check_stop_ids(ids: tuple[int, ...], vocab_size: int) -> None:
    field = "sampling_params.stop_token_ids"
    if len(ids) > MAX_STOP_IDS:
        raise InvalidRequest(
            f"stop_token_ids has {len(ids)} ids, limit {MAX_STOP_IDS}", field=field
        )
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"stop_token_ids[{index}] is {token_id}, must be below the vocabulary size "
                f"{vocab_size}",
                field=field,
            )
