"""Checks the values of SamplingParams that say how tokens are chosen, and fills in defaults. Pure.

A value comes from the request, else from the model's generation_config.json, else it changes
nothing. Every refusal is an InvalidRequest that names the field, the value and the limit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeVar

from chunkmesh.errors import InvalidRequest
from scheduler.events import Sampling

MAX_LOGIT_BIASES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_OUTPUTS = 128
MAX_TOP_LOGPROBS = 20
_MAX_WHOLE = 2**63 - 1
"""Of a number in a model's file; larger ones do not fit what later computes with them."""

_T = TypeVar("_T")

# Comparisons with NaN are false, so that every range excludes it.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (
        lambda value: math.isfinite(value) and value >= 0,
        "must be finite and >= 0 (0 means greedy)",
    ),
    "top_p": (lambda value: 0 < value <= 1, "must be above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "must be from 0 to 1"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "must be from -2 to 2"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "must be from -2 to 2"),
    "repetition_penalty": (lambda value: 0 < value <= 10, "must be above 0 and at most 10"),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What the model's generation_config.json says; None where it says nothing."""

    temperature: float | None = None
    """0 where it says that nothing is sampled."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


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
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids, each at most once, and what is added to their logits; in any order."""
    n: int | None = None
    logprobs: bool = False
    prompt_logprobs: bool = False
    top_logprobs: int | None = None
    until_full: bool = False


def check_defaults(defaults: SamplingDefaults) -> SamplingDefaults:
    """Return a model's defaults, with a top_k that keeps all written as 0.

    Raises:
        ValueError: a value is outside its range.
        TypeError: a value is no number.
    """
    for name, value in dataclasses.asdict(defaults).items():
        kinds = (int,) if name == "top_k" else (int, float)
        if value is not None and type(value) not in kinds:
            raise TypeError(f"{name} is {value!r}, must be a{' whole' * (kinds == (int,))} number")
        if type(value) is int and abs(value) > _MAX_WHOLE:
            raise ValueError(f"{name} is a number of {value.bit_length()} bits, out of range")
    top_k = defaults.top_k
    checked = dataclasses.replace(defaults, top_k=None if top_k is None else max(top_k, 0))
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        value = getattr(checked, name)
        fault = None if value is None else _fault(name, value)
        if fault:
            raise ValueError(fault)
    return checked


def check_sampling(
    given: GivenParams,
    defaults: SamplingDefaults,
    *,
    vocab_size: int,
    drawn_seed: int,
    top_logprobs: int,
) -> Sampling:
    """Return the values in force; drawn_seed is used if the client sent no seed.

    top_logprobs is what check_top_logprobs has returned.

    Raises:
        InvalidRequest: a value is outside its range.
    """
    top_k = _first(given.top_k, defaults.top_k, 0)
    if top_k < 0:
        raise InvalidRequest(f"top_k is {top_k}, must be >= 0", field="sampling_params.top_k")
    repetition_penalty = _first(given.repetition_penalty, defaults.repetition_penalty, 1.0)
    return Sampling(
        temperature=_checked("temperature", _first(given.temperature, defaults.temperature, 1.0)),
        top_p=_checked("top_p", _first(given.top_p, defaults.top_p, 1.0)),
        top_k=min(top_k, vocab_size),
        min_p=_checked("min_p", _first(given.min_p, defaults.min_p, 0.0)),
        seed=_check_seed(drawn_seed if given.seed is None else given.seed),
        frequency_penalty=_checked("frequency_penalty", given.frequency_penalty or 0.0),
        presence_penalty=_checked("presence_penalty", given.presence_penalty or 0.0),
        repetition_penalty=_checked("repetition_penalty", repetition_penalty),
        logit_bias=_check_logit_bias(given.logit_bias, vocab_size),
        top_logprobs=top_logprobs if given.logprobs else None,
    )


def check_num_outputs(given: GivenParams) -> int:
    """Return how many outputs are wanted, 1 unless the client says otherwise."""
    num_outputs = 1 if given.n is None else given.n
    if not 1 <= num_outputs <= MAX_OUTPUTS:
        raise InvalidRequest(
            f"n is {num_outputs}, must be from 1 to {MAX_OUTPUTS}", field="sampling_params.n"
        )
    return num_outputs


def check_top_logprobs(given: GivenParams, vocab_size: int) -> int:
    """Return how many most likely ids to tell at each position; never more than there are ids."""
    top_logprobs = given.top_logprobs or 0
    field = "sampling_params.top_logprobs"
    if not 0 <= top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {top_logprobs}, must be from 0 to {MAX_TOP_LOGPROBS}", field=field
        )
    if top_logprobs and not (given.logprobs or given.prompt_logprobs):
        raise InvalidRequest(
            f"top_logprobs is {top_logprobs}, must be 0 without logprobs or prompt_logprobs",
            field=field,
        )
    return min(top_logprobs, vocab_size)


def _check_seed(seed: int) -> int:
    if not 0 <= seed < 2**64:
        raise InvalidRequest(
            f"seed is {seed}, must be within 64 bits and >= 0", field="sampling_params.seed"
        )
    return seed


def _check_logit_bias(
    biases: tuple[tuple[int, float], ...], vocab_size: int
) -> tuple[tuple[int, float], ...]:
    """Return the biases sorted by id."""
    field = "sampling_params.logit_bias"
    if len(biases) > MAX_LOGIT_BIASES:
        raise InvalidRequest(
            f"logit_bias has {len(biases)} ids, limit {MAX_LOGIT_BIASES}", field=field
        )
    for token_id, bias in biases:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"logit_bias names id {token_id}, must be below the vocabulary size {vocab_size}",
                field=field,
            )
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias of id {token_id} is {bias:g}, must be from {-MAX_LOGIT_BIAS:g} to "
                f"{MAX_LOGIT_BIAS:g}",
                field=field,
            )
    return tuple(sorted(biases))


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
    """Say what is wrong with a value, or None."""
    holds, rule = _RANGES[name]
    return None if holds(value) else f"{name} is {value:g}, {rule}"
