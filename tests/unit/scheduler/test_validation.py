"""A bad request is refused at the door, with the value and the limit in the text."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np
import pytest

from chunkmesh.errors import InvalidRequest
from chunkmesh.grpc_options import MAX_MESSAGE_BYTES
from scheduler.sampling_params import GivenParams, SamplingDefaults, check_defaults
from scheduler.validation import (
    CheckedParams,
    Door,
    KvPoolSize,
    check_params,
    check_priority,
    check_prompt,
    check_request_id,
    check_text,
    check_token_ids,
    parse_ids,
    parse_ids_le,
)

DOOR = Door(vocab_size=264, context_length=100, eos_ids=frozenset({257}))


def check(door: Door = DOOR, prompt_tokens: int = 10, **given: Any) -> CheckedParams:
    """Check parameters of which only the given ones are present."""
    params = GivenParams(**given)
    return check_params(params, door, prompt_tokens=prompt_tokens, drawn_seed=7)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens", ["is 0", "at least 1"]),
        ({"temperature": -0.5}, "temperature", ["-0.5", ">= 0"]),
        ({"temperature": math.nan}, "temperature", ["nan", "finite"]),
        ({"temperature": math.inf}, "temperature", ["inf", "finite"]),
        ({"top_p": 0.0}, "top_p", ["is 0", "above 0"]),
        ({"top_p": 1.5}, "top_p", ["1.5", "at most 1"]),
        ({"top_p": math.nan}, "top_p", ["nan"]),
        ({"min_p": -0.1}, "min_p", ["-0.1", "0 to 1"]),
        ({"min_p": 1.1}, "min_p", ["1.1", "0 to 1"]),
        ({"stop": ("x",) * 17}, "stop", ["17", "16"]),
        ({"stop": ("a", "")}, "stop", ["stop[1]", "0 characters"]),
        ({"stop": ("x" * 257,)}, "stop", ["257", "256"]),
        ({"stop_token_ids": (1, 264)}, "stop_token_ids", ["[1] is 264", "vocabulary size 264"]),
        ({"stop_token_ids": (1,) * 257}, "stop_token_ids", ["257", "256"]),
        ({"max_new_tokens": 4, "min_new_tokens": 5}, "min_new_tokens", ["is 5", "at most 4"]),
        ({"min_new_tokens": 91}, "min_new_tokens", ["91", "at most 90"]),
        ({"seed": 2**64}, "seed", ["18446744073709551616", "64 bits"]),
        ({"top_k": -1}, "top_k", ["-1", ">= 0"]),
    ],
)
def test_a_bad_parameter_is_refused(given: dict[str, Any], field: str, words: list[str]) -> None:
    """The client must see which field, which value and which limit."""
    with pytest.raises(InvalidRequest) as refusal:
        check(**given)
    assert refusal.value.field == f"sampling_params.{field}"
    assert [word for word in words if word not in str(refusal.value)] == []


def test_absent_fields_take_the_documented_defaults() -> None:
    """The proto comments state them."""
    checked = check(door=dataclasses.replace(DOOR, context_length=1000))
    sampling = checked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, 0, 0)
    assert sampling.seed == 7
    assert (checked.max_new_tokens, checked.min_new_tokens) == (128, 0)
    assert (checked.stop, checked.skip_special_tokens) == ((), True)
    assert checked.end_ids == {257}


def test_the_models_own_defaults_come_before_ours() -> None:
    """A model's generation_config is what its authors tested it with."""
    defaults = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20)
    door = dataclasses.replace(DOOR, defaults=defaults)
    sampling = check(door, top_p=0.5).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.5, 20)


def test_a_zero_in_the_request_is_not_an_absent_field() -> None:
    """Greedy decoding is asked for with temperature 0, and top_k 0 keeps all ids."""
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    sampling = check(
        dataclasses.replace(DOOR, defaults=defaults), temperature=0.0, top_k=0
    ).sampling
    assert (sampling.temperature, sampling.top_k) == (0, 0)


@pytest.mark.parametrize(("given", "expected"), [(None, 90), (500, 90), (90, 90), (3, 3)])
def test_new_tokens_never_exceed_what_the_context_leaves(given: int | None, expected: int) -> None:
    """A full context ends the output; it is no mistake of the client."""
    assert check(max_new_tokens=given).max_new_tokens == expected


@pytest.mark.parametrize(
    ("pool", "prompt_tokens", "num_outputs", "expected"),
    [
        ((8, 16), 10, 1, 90),  # the context leaves less
        ((4, 16), 10, 1, 55),  # 64 positions hold 10 + 54; the last token needs none
        ((4, 16), 16, 2, 17),  # one shared page, one each
        ((4, 16), 64, 1, 1),
        ((4, 16), 90, 1, 1),  # refused at admission, for the prompt
        ((1, 16), 10, 2, 1),
    ],
)
def test_only_the_default_is_cut_to_the_pool(
    pool: tuple[int, int], prompt_tokens: int, num_outputs: int, expected: int
) -> None:
    """Nobody must be refused for a number that was never sent; a wish is not cut in silence."""
    size = KvPoolSize(num_pages=pool[0], page_tokens=pool[1])
    absent, given = (
        check_params(
            GivenParams(n=num_outputs, max_new_tokens=wish),
            DOOR,
            prompt_tokens=prompt_tokens,
            drawn_seed=7,
            pool=size,
        )
        for wish in (None, 99)
    )
    assert (absent.max_new_tokens, absent.asked_new_tokens) == (expected, None)
    assert (given.max_new_tokens, given.asked_new_tokens) == (100 - prompt_tokens, 99)


def test_a_wish_that_was_cut_is_named_as_it_was_sent() -> None:
    """The client looks for its own number."""
    door = dataclasses.replace(DOOR, context_length=2_000_000)
    words = r"max_new_tokens 4294967295 \(of which the context leaves 1999990\) with logprobs"
    with pytest.raises(InvalidRequest, match=words):
        check(door, max_new_tokens=2**32 - 1, logprobs=True, top_logprobs=20)


def test_top_k_above_the_vocabulary_is_clamped() -> None:
    """Samplers may not ask for more ids than a row has (O08)."""
    assert check(top_k=9_999_999).sampling.top_k == 264


def test_ignore_eos_keeps_the_clients_own_stop_ids() -> None:
    """Only the model's end tokens are ignored."""
    assert check(ignore_eos=True, stop_token_ids=(5,)).end_ids == {5}
    assert check(stop_token_ids=(5,)).end_ids == {5, 257}


def test_an_empty_prompt_is_refused() -> None:
    """There is nothing to compute; the field at fault is named."""
    with pytest.raises(InvalidRequest, match="empty prompt") as refusal:
        check_prompt(parse_ids([]), DOOR, field="input_ids")
    assert refusal.value.field == "input_ids"
    with pytest.raises(InvalidRequest, match="text is empty"):
        check_text("")


def test_an_id_above_the_vocabulary_is_refused() -> None:
    """It would read past the embedding."""
    with pytest.raises(InvalidRequest, match=r"input_ids\[1\] is 264, .* vocabulary size 264"):
        check_prompt(parse_ids([263, 264, 300]), DOOR, field="input_ids")


@pytest.mark.parametrize("num_tokens", [100, 150])
def test_a_prompt_that_leaves_no_room_is_refused(num_tokens: int) -> None:
    """Both the prompt's length and the context's are named."""
    with pytest.raises(InvalidRequest, match=f"{num_tokens} tokens; the context holds 100"):
        check_prompt(np.zeros(num_tokens, dtype=np.uint32), DOOR, field="text")


def test_a_prompt_that_leaves_one_token_is_accepted() -> None:
    """The limit itself is allowed."""
    check_prompt(np.zeros(99, dtype=np.uint32), DOOR, field="text")
    assert check(prompt_tokens=99).max_new_tokens == 1


def test_ids_as_bytes_are_little_endian() -> None:
    """The wire format does not depend on the machine."""
    assert parse_ids_le(b"\x01\x00\x00\x00\x00\x01\x00\x00").tolist() == [1, 256]
    with pytest.raises(InvalidRequest, match="6 bytes, must be a multiple of 4"):
        parse_ids_le(b"\x00" * 6)


def test_a_million_ids_are_checked_without_python_lists() -> None:
    """The door must not stall the loop on long prompts."""
    data = np.arange(1_000_000, dtype="<u4").tobytes()
    door = Door(vocab_size=1_000_000, context_length=2_000_000, eos_ids=frozenset())
    taken_s = []
    for _ in range(3):
        started = time.process_time()
        check_prompt(parse_ids_le(data), door, field="input_ids_le")
        taken_s.append(time.process_time() - started)
    assert min(taken_s) < 0.1


def test_a_request_id_may_have_128_characters() -> None:
    """Ids go into logs and keys."""
    check_request_id("x" * 128)
    with pytest.raises(InvalidRequest, match="129 characters, limit 128"):
        check_request_id("x" * 129)


@pytest.mark.parametrize("request_id", ["\x1b]0;gone\x07", "a\nb", "a\u2028b", "\x7f"])
def test_a_request_id_is_printable(request_id: str) -> None:
    """`chunkmesh trace` shows ids of all clients: none may steer another's terminal."""
    with pytest.raises(InvalidRequest, match="must be printable"):
        check_request_id(request_id)


def test_a_request_id_may_be_in_any_language() -> None:
    """Letters are letters."""
    check_request_id("Anfrage Nr. 7 \u00e4\u6587")


def test_a_models_defaults_are_checked_too() -> None:
    """A bad file must stop the start, not every request."""
    assert check_defaults(SamplingDefaults(top_k=-1)).top_k == 0
    with pytest.raises(ValueError, match="top_p is 2"):
        check_defaults(SamplingDefaults(top_p=2.0))


@pytest.mark.parametrize("priority", [-101, 101, -(1 << 31), (1 << 31) - 1])
def test_a_priority_out_of_range_is_named(priority: int) -> None:
    """Nobody can outbid all others for ever."""
    with pytest.raises(InvalidRequest, match=f"priority is {priority}, must be in") as refused:
        check_priority(priority, DOOR, is_operator=True)
    assert refused.value.field == "priority"


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_priorities_within_the_range(priority: int) -> None:
    """Both ends are in."""
    check_priority(priority, DOOR, is_operator=False)


def test_a_users_priority_has_a_limit_of_its_own() -> None:
    """One who asks for the highest goes before all others as long as he likes."""
    door = dataclasses.replace(DOOR, max_user_priority=7)
    for priority in (-100, 0, 7):
        check_priority(priority, door, is_operator=False)
    check_priority(100, door, is_operator=True)
    expected = r"priority is 8, at most 7 for users here \(--max-user-priority\)"
    with pytest.raises(InvalidRequest, match=expected) as refused:
        check_priority(8, door, is_operator=False)
    assert refused.value.field == "priority"


@pytest.mark.parametrize(
    ("pool", "prompt_tokens", "num_outputs", "expected"),
    [(None, 10, 1, 90), ((4, 16), 10, 1, 55), ((4, 16), 16, 2, 17)],
)
def test_until_full_takes_what_context_and_pool_leave(
    pool: tuple[int, int] | None, prompt_tokens: int, num_outputs: int, expected: int
) -> None:
    """Clients that name no limit want the whole answer, and are refused for none."""
    checked = check_params(
        GivenParams(n=num_outputs, until_full=True),
        DOOR,
        prompt_tokens=prompt_tokens,
        drawn_seed=7,
        pool=None if pool is None else KvPoolSize(num_pages=pool[0], page_tokens=pool[1]),
    )
    assert (expected, None) == (checked.max_new_tokens, checked.asked_new_tokens)


def test_until_full_is_more_than_the_default() -> None:
    """Else it would mean nothing where the context is long."""
    door = dataclasses.replace(DOOR, context_length=1000)
    assert 990 == check(door, until_full=True).max_new_tokens


def test_until_full_ends_where_no_message_could_hold_more_logprobs() -> None:
    """The client named no number that could be refused."""
    door = dataclasses.replace(DOOR, context_length=1 << 24)
    checked = check(door, until_full=True, logprobs=True, top_logprobs=20)
    assert MAX_MESSAGE_BYTES // 180 == checked.max_new_tokens


def test_until_full_excludes_a_number() -> None:
    """One of the two would be without effect."""
    with pytest.raises(InvalidRequest, match="exclude each other") as refusal:
        check(until_full=True, max_new_tokens=5)
    assert "sampling_params.until_full" == refusal.value.field


def test_ids_to_decode_are_within_the_vocabulary() -> None:
    """And so few that no call holds the others up."""
    check_token_ids([0, 263], DOOR)
    with pytest.raises(InvalidRequest, match=r"ids\[1\] is 264"):
        check_token_ids([0, 264], DOOR)
    with pytest.raises(InvalidRequest, match="65537 ids"):
        check_token_ids([0] * 65537, DOOR)
