"""POST /v1/completions: from JSON to requests of the mesh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.asked import Asked, StreamOptions
from chunkmesh.gateway.completion_request import read_completion
from chunkmesh.v1 import generation_pb2 as pb


def read(**fields: Any) -> Asked:
    """Read a body with these fields."""
    return read_completion({"model": "m", "prompt": "p", **fields})


def params(**fields: Any) -> pb.SamplingParams:
    """Return the sampling parameters of a body with these fields."""
    return read(**fields).requests[0].sampling_params


def refusal(**fields: Any) -> ApiError:
    """Return the error of a body with these fields."""
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert 400 == caught.value.status
    return caught.value


def ids(request: pb.GenerateRequest) -> list[int]:
    """Return a request's token ids."""
    found: list[int] = np.frombuffer(request.input_ids_le, "<u4").tolist()
    return found


def test_a_text() -> None:
    """Nothing is set that the client has not set, but OpenAI's default length."""
    (request,) = read().requests
    assert (
        pb.GenerateRequest(text="p", sampling_params=pb.SamplingParams(max_new_tokens=16))
        == request
    )


def test_several_texts() -> None:
    """Each is a request with the same parameters."""
    asked = read(prompt=["a", "b"], n=3, seed=5)
    assert ["a", "b"] == [request.text for request in asked.requests]
    assert [(3, 5)] * 2 == [
        (each.sampling_params.n, each.sampling_params.seed) for each in asked.requests
    ]
    assert 3 == asked.num_outputs


def test_token_ids() -> None:
    """They go on as bytes, which a million of them needs."""
    assert [0, 7, 2**32 - 1] == ids(read(prompt=[0, 7, 2**32 - 1]).requests[0])


def test_several_lists_of_ids() -> None:
    """And texts beside them."""
    requests = read(prompt=[[1, 2], "x", [3]]).requests
    assert ([1, 2], "x", [3]) == (ids(requests[0]), requests[1].text, ids(requests[2]))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (7, "prompt"),
        ([], "prompt"),
        ([1, "x"], "prompt"),
        ([1, 2.0], "prompt"),
        ([1, True], "prompt"),
        ([-1], "prompt"),
        ([2**32], "prompt"),
        ([2**80], "prompt"),
        ([[1], [True]], "prompt[1]"),
        ([{"text": "x"}], "prompt[0]"),
        ([["x"]], "prompt[0]"),
        (["x"] * 129, "prompt"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: object, param: str) -> None:
    """With the place where it is wrong."""
    assert param == refusal(prompt=prompt).param


def test_prompts_times_outputs_are_bounded() -> None:
    """One request of HTTP is no way around the mesh's own limit."""
    assert "limit 128" in str(refusal(prompt=["a", "b"], n=65))


def test_every_sampling_parameter_arrives() -> None:
    """Under the mesh's names, where those differ."""
    sent = params(
        max_tokens=9, min_tokens=1, temperature=0, top_p=0.5, top_k=-1, min_p=0.25,
        frequency_penalty=-1.5, presence_penalty=0.5, repetition_penalty=1.25, seed=-1, n=2,
        logprobs=4, stop=["a", "b"], stop_token_ids=[5], ignore_eos=True,
        skip_special_tokens=False, logit_bias={"7": -100, "300": 1.5},
    )  # fmt: skip
    given = {field.name for field, _ in sent.ListFields()} | {"top_k", "skip_special_tokens"}
    assert set(pb.SamplingParams.DESCRIPTOR.fields_by_name) - given == {
        "prompt_logprobs",
        "until_full",
    }
    assert (9, 1, 0.0, 0) == (
        sent.max_new_tokens,
        sent.min_new_tokens,
        sent.temperature,
        sent.top_k,
    )
    assert sent.HasField("temperature")
    assert sent.HasField("top_k")
    assert (2**64 - 1, True, 4) == (sent.seed, sent.logprobs, sent.top_logprobs)
    assert {7: -100.0, 300: 1.5} == dict(sent.logit_bias)
    assert not sent.skip_special_tokens


def test_what_the_mesh_has_beside() -> None:
    """Extra fields, as vLLM's clients send them."""
    asked = read(priority=-3, cache_salt="s", request_id="mine")
    request = asked.requests[0]
    assert (-3, "s", "mine") == (request.priority, request.cache_salt, asked.request_id)


def test_no_logprobs_at_zero_are_still_logprobs() -> None:
    """0 asks for the chosen tokens' only."""
    sent = params(logprobs=0)
    assert (True, 0) == (sent.logprobs, sent.top_logprobs)
    assert not params().logprobs


@pytest.mark.parametrize(("stop", "expected"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([], [])])
def test_stop_is_a_string_or_several(stop: object, expected: list[str]) -> None:
    """As OpenAI has it."""
    assert expected == list(params(stop=stop).stop)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [1]),
        ("stop", 1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**32),
        ("n", 0),
        ("n", 129),
        ("logprobs", 21),
        ("logprobs", True),
        ("seed", 2**64),
        ("top_k", -2),
        ("temperature", "hot"),
        ("logit_bias", []),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1": "x"}),
        ("logit_bias", {"99999999999": 1}),
        ("logit_bias", dict.fromkeys(map(str, range(1025)), 1)),
        ("stop_token_ids", ["x"]),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "x"),
        ("priority", 101),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("request_id", "x" * 121),
        ("request_id", "a\nb"),
        ("model", None),
        ("model", ""),
        ("use_beam_search", True),
        ("response_format", {"type": "json_object"}),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(field: str, value: object) -> None:
    """Nothing is dropped in silence."""
    param = refusal(**{field: value}).param
    assert param is not None
    assert field == param.partition("[")[0]


def test_what_load_tools_send_is_taken() -> None:
    """As vllm bench serve, SGLang's bench_serving and guidellm write their bodies."""
    asked = read(
        repetition_penalty=1.0, max_tokens=5, logprobs=None, stream=True, best_of=1,
        stream_options={"include_usage": True, "continuous_usage_stats": True}, ignore_eos=True,
        user="u", temperature=0.0, stop=None,
    )  # fmt: skip
    assert StreamOptions(include_usage=True, usage_in_all=True) == asked.stream
    assert asked.requests[0].stream


@pytest.mark.parametrize("options", [{"include_usage": 1}, {"other": True}, [], "include_usage"])
def test_stream_options_are_checked_too(options: object) -> None:
    """A typo there would lose the usage."""
    param = refusal(stream=True, stream_options=options).param
    assert "stream_options" == (param or "").partition(".")[0]
