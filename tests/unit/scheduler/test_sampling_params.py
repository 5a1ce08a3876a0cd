"""Values that say how tokens are chosen: checked at the door, defaults filled in."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chunkmesh.errors import InvalidRequest
from scheduler.sampling_params import GivenParams, SamplingDefaults, check_defaults
from scheduler.validation import CheckedParams, Door, check_params

VOCAB = 264


def check(defaults: SamplingDefaults | None = None, **given: Any) -> CheckedParams:
    """Check parameters of which only the given ones are present."""
    door = Door(
        vocab_size=VOCAB,
        context_length=1_000_000,
        eos_ids=frozenset({257, 258}),
        defaults=defaults or SamplingDefaults(),
    )
    return check_params(GivenParams(**given), door, prompt_tokens=10, drawn_seed=7)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"frequency_penalty": -2.1}, "frequency_penalty", ["-2.1", "-2 to 2"]),
        ({"frequency_penalty": math.nan}, "frequency_penalty", ["nan", "-2 to 2"]),
        ({"presence_penalty": 2.5}, "presence_penalty", ["2.5", "-2 to 2"]),
        ({"presence_penalty": -math.inf}, "presence_penalty", ["-inf", "-2 to 2"]),
        ({"repetition_penalty": 0.0}, "repetition_penalty", ["is 0", "above 0", "10"]),
        ({"repetition_penalty": 10.5}, "repetition_penalty", ["10.5", "at most 10"]),
        ({"repetition_penalty": math.nan}, "repetition_penalty", ["nan"]),
        ({"logit_bias": ((300, -100.0),)}, "logit_bias", ["id 300", "vocabulary size 264"]),
        ({"logit_bias": ((65, 100.5),)}, "logit_bias", ["id 65 is 100.5", "-100 to 100"]),
        ({"logit_bias": ((65, math.nan),)}, "logit_bias", ["id 65 is nan", "-100 to 100"]),
        ({"logit_bias": ((65, math.inf),)}, "logit_bias", ["id 65 is inf", "-100 to 100"]),
        ({"logit_bias": ((1, 0.0),) * 1025}, "logit_bias", ["1025 ids", "limit 1024"]),
        ({"n": 0}, "n", ["is 0", "1 to 128"]),
        ({"n": 129}, "n", ["is 129", "1 to 128"]),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["is 21", "0 to 20"]),
        ({"top_logprobs": 1}, "top_logprobs", ["is 1", "logprobs or prompt_logprobs"]),
    ],
)
def test_a_bad_value_is_refused(given: dict[str, Any], field: str, words: list[str]) -> None:
    """The client must learn which field, which value and which limit, and no stage hears of it."""
    with pytest.raises(InvalidRequest) as refusal:
        check(**given)
    assert refusal.value.field == f"sampling_params.{field}"
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    "given",
    [
        {"frequency_penalty": -2.0, "presence_penalty": 2.0, "repetition_penalty": 10.0},
        {"logit_bias": ((0, -100.0), (263, 100.0))},
        {"n": 128},
        {"prompt_logprobs": True, "top_logprobs": 20},
        {"top_logprobs": 0},
    ],
)
def test_the_limits_themselves_are_allowed(given: dict[str, Any]) -> None:
    """What the contract names as the edge of a range lies inside it."""
    check(**given)


def test_absent_values_change_nothing() -> None:
    """Nobody pays for what he does not ask for."""
    checked = check()
    sampling = checked.sampling
    assert not sampling.has_penalties
    assert (sampling.logit_bias, sampling.top_logprobs) == ((), None)
    assert (checked.num_outputs, checked.prompt_top_logprobs) == (1, None)


def test_values_reach_the_engine() -> None:
    """Each one where the engine reads it; biases in one order, whatever the client's map had."""
    checked = check(
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.25,
        logit_bias=((9, 1.5), (3, -100.0)),
        n=3,
        logprobs=True,
        prompt_logprobs=True,
        top_logprobs=4,
    )
    sampling = checked.sampling
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)
    assert sampling.repetition_penalty == 1.25
    assert sampling.logit_bias == ((3, -100.0), (9, 1.5))
    assert (sampling.top_logprobs, checked.prompt_top_logprobs) == (4, 4)
    assert checked.num_outputs == 3


def test_output_and_prompt_logprobs_are_asked_for_apart() -> None:
    """Those of the prompt cost its whole prefix cache, so they never come by accident."""
    output, prompt = check(logprobs=True), check(prompt_logprobs=True, top_logprobs=2)
    assert (output.sampling.top_logprobs, output.prompt_top_logprobs) == (0, None)
    assert (prompt.sampling.top_logprobs, prompt.prompt_top_logprobs) == (None, 2)


def test_top_logprobs_above_the_vocabulary_are_clamped() -> None:
    """A row of logits has no more ids than that."""
    door = Door(vocab_size=8, context_length=100, eos_ids=frozenset())
    given = GivenParams(logprobs=True, top_logprobs=20)
    checked = check_params(given, door, prompt_tokens=1, drawn_seed=0)
    assert checked.sampling.top_logprobs == 8


def test_logprobs_that_no_message_could_carry_are_refused() -> None:
    """Better at once than after hours, when the complete message is to be sent."""
    few = check(logprobs=True, top_logprobs=20, max_new_tokens=372_827)
    assert few.max_new_tokens == 372_827
    with pytest.raises(InvalidRequest, match=r"372828 with logprobs and 20 .* most 372827 tokens"):
        check(logprobs=True, top_logprobs=20, max_new_tokens=372_828)
    assert check(max_new_tokens=900_000).max_new_tokens == 900_000


def test_the_models_repetition_penalty_is_the_default() -> None:
    """Small models' generation_config.json often sets one."""
    defaults = SamplingDefaults(repetition_penalty=1.1)
    assert check(defaults).sampling.repetition_penalty == 1.1
    assert check(defaults, repetition_penalty=1.0).sampling.repetition_penalty == 1.0
    with pytest.raises(ValueError, match="repetition_penalty is 0, must be above 0"):
        check_defaults(SamplingDefaults(repetition_penalty=0.0))


def test_ignore_eos_switches_off_every_end_token_of_the_model() -> None:
    """Not one of them may end the output then, but ids that the caller asked for do (O10)."""
    assert check().end_ids == {257, 258}
    assert check(ignore_eos=True).end_ids == set()
    assert check(ignore_eos=True, stop_token_ids=(66,)).end_ids == {66}
    assert check(ignore_eos=True, stop_token_ids=(258,)).end_ids == {258}
