"""Checks a request at the door and fills in its defaults. Pure: plain values in, plain values out.

Every refusal is an InvalidRequest that names the field, the value and the limit. Prompts may hold
a million ids, so they are looked at with numpy only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from chunkmesh.errors import InvalidRequest
from chunkmesh.pages import TokenIds
from scheduler.events import Sampling

MAX_REQUEST_ID_CHARS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 256
DEFAULT_MAX_NEW_TOKENS = 128

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What the model's generation_config.json says; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What requests are measured against."""

    vocab_size: int
    context_length: int
    """Longest prompt and output together, in tokens."""
    eos_ids: frozenset[int]
    """The model's own end tokens."""
    defaults: SamplingDefaults = SamplingDefaults()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GivenParams:
    """SamplingParams as the client sent them; None where a field is absent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    skip_special_tokens: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckedParams:
    """SamplingParams with every value present and within its limits."""

    sampling: Sampling
    max_new_tokens: int
    """>= 1; prompt + max_new_tokens fits the context."""
    min_new_tokens: int
    """0 <= min_new_tokens <= max_new_tokens."""
    stop: tuple[str, ...]
    end_ids: frozenset[int]
    skip_special_tokens: bool


def check_request_id(request_id: str) -> None:
    """Refuse an id that is too long; an empty one is the caller's to replace."""
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"request_id has {len(request_id)} characters, limit {MAX_REQUEST_ID_CHARS}",
            field="request_id",
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
    """Copy ids of a protobuf field, each already within 32 bits."""
    return np.fromiter(ids, dtype=np.uint32, count=len(ids))


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


def check_params(
    given: GivenParams, door: Door, *, prompt_tokens: int, drawn_seed: int
) -> CheckedParams:
    """Check everything but the prompt, which was checked before and has prompt_tokens tokens.

    drawn_seed is used if the client sent no seed. max_new_tokens is cut to what the context
    leaves.
    """
    max_new, min_new = _check_lengths(given, door.context_length - prompt_tokens)
    _check_stop(given.stop)
    _check_stop_ids(given.stop_token_ids, door.vocab_size)
    eos_ids: frozenset[int] = frozenset() if given.ignore_eos else door.eos_ids
    return CheckedParams(
        sampling=_check_sampling(given, door, drawn_seed),
        max_new_tokens=max_new,
        min_new_tokens=min_new,
        stop=tuple(dict.fromkeys(given.stop)),
        end_ids=eos_ids | frozenset(given.stop_token_ids),
        skip_special_tokens=given.skip_special_tokens is not False,
    )


def check_defaults(defaults: SamplingDefaults) -> SamplingDefaults:
    """Return a model's defaults, with a top_k that keeps all written as 0.

    Raises:
        ValueError: a value is outside its range.
        TypeError: a value is no number.
    """
    top_k = defaults.top_k
    checked = dataclasses.replace(defaults, top_k=None if top_k is None else max(int(top_k), 0))
    for name, value in (
        ("temperature", checked.temperature),
        ("top_p", checked.top_p),
        ("min_p", checked.min_p),
    ):
        fault = None if value is None else _fault(name, value)
        if fault:
            raise ValueError(fault)
    return checked


def _check_lengths(given: GivenParams, room: int) -> tuple[int, int]:
    """Return (max_new_tokens, min_new_tokens); room >= 1 is what the prompt leaves."""
    wanted = DEFAULT_MAX_NEW_TOKENS if given.max_new_tokens is None else given.max_new_tokens
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


def _check_sampling(given: GivenParams, door: Door, drawn_seed: int) -> Sampling:
    """Take each value from the request, else from the model's defaults, else keep everything."""
    defaults = door.defaults
    top_k = _first(given.top_k, defaults.top_k, 0)
    seed = drawn_seed if given.seed is None else given.seed
    if top_k < 0:
        raise InvalidRequest(f"top_k is {top_k}, must be >= 0", field="sampling_params.top_k")
    if not 0 <= seed < 2**64:
        raise InvalidRequest(
            f"seed is {seed}, must be within 64 bits and >= 0", field="sampling_params.seed"
        )
    return Sampling(
        temperature=_checked("temperature", _first(given.temperature, defaults.temperature, 1.0)),
        top_p=_checked("top_p", _first(given.top_p, defaults.top_p, 1.0)),
        top_k=min(top_k, door.vocab_size),
        min_p=_checked("min_p", _first(given.min_p, defaults.min_p, 0.0)),
        seed=seed,
    )


def _first(given: _T | None, default: _T | None, otherwise: _T) -> _T:
    for value in (given, default):
        if value is not None:
            return value
    return otherwise


def _checked(name: str, value: float) -> float:
    fault = _fault(name, value)
    if fault:
        raise InvalidRequest(fault, field=f"sampling_params.{name}")
    return value


def _fault(name: str, value: float) -> str | None:
    """Say what is wrong with a sampling value, or None."""
    if name == "temperature" and not (math.isfinite(value) and value >= 0):
        return f"temperature is {value:g}, must be finite and >= 0 (0 means greedy)"
    if name == "top_p" and not 0 < value <= 1:
        return f"top_p is {value:g}, must be above 0 and at most 1"
    if name == "min_p" and not 0 <= value <= 1:
        return f"min_p is {value:g}, must be from 0 to 1"
    return None
