"""Reads the JSON of POST /v1/completions. Pure."""

from __future__ import annotations

import numpy as np

from chunkmesh.gateway.api_error import invalid
from chunkmesh.gateway.asked import (
    MAX_CHOICES,
    Asked,
    take_model,
    take_request_id,
    take_stream_options,
    whole_request,
)
from chunkmesh.gateway.fields import MAX_UINT32, Fields, wrong_type
from chunkmesh.gateway.known_fields import IGNORED, UNSUPPORTED_COMPLETION
from chunkmesh.gateway.sampling import MAX_TOP_LOGPROBS, NAMES, take_sampling
from chunkmesh.v1 import generation_pb2 as pb

DEFAULT_MAX_TOKENS = 16
"""OpenAI's for completions."""


def read_completion(body: object) -> Asked:
    """Return what the body of a request asks for.

    Raises:
        ApiError: it cannot be served; names the field.
    """
    fields = Fields(body)
    model, stream = take_model(fields), take_stream_options(fields)
    request_id = take_request_id(fields)
    prompts = _take_prompts(fields)
    params = take_sampling(fields)
    num_outputs = params.n or 1
    params.max_new_tokens = fields.whole("max_tokens", least=1) or DEFAULT_MAX_TOKENS
    top_logprobs = fields.whole("logprobs", most=MAX_TOP_LOGPROBS)
    if top_logprobs is not None:
        params.logprobs, params.top_logprobs = True, top_logprobs
    _check_best_of(fields, num_outputs)
    if len(prompts) * num_outputs > MAX_CHOICES:
        raise invalid(
            f"{len(prompts)} prompts with n {num_outputs} each, limit {MAX_CHOICES} in all",
            "prompt",
        )
    shared = whole_request(pb.GenerateRequest(), fields, params, is_stream=stream is not None)
    fields.drop(IGNORED)
    fields.refuse(UNSUPPORTED_COMPLETION)
    fields.end()
    for prompt in prompts:
        prompt.MergeFrom(shared)
    return Asked(
        model=model,
        requests=tuple(prompts),
        num_outputs=num_outputs,
        request_id=request_id,
        stream=stream,
        names={**NAMES, "top_logprobs": "logprobs"},
    )


def _take_prompts(fields: Fields) -> list[pb.GenerateRequest]:
    """Take a text, ids, or a list of either."""
    prompt = fields.take("prompt")
    if prompt is None:
        raise invalid("prompt is missing", "prompt", "missing_required_parameter")
    if isinstance(prompt, str):
        return [pb.GenerateRequest(text=prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise wrong_type("prompt", "a string, a list of token ids, or a list of either")
    if type(prompt[0]) is int:
        return [_of_ids(prompt, "prompt")]
    if len(prompt) > MAX_CHOICES:
        raise invalid(f"{len(prompt)} prompts, limit {MAX_CHOICES}", "prompt")
    return [_prompt(each, f"prompt[{index}]") for index, each in enumerate(prompt)]


def _prompt(prompt: object, path: str) -> pb.GenerateRequest:
    if isinstance(prompt, str):
        return pb.GenerateRequest(text=prompt)
    if not isinstance(prompt, list):
        raise wrong_type(path, "a string or a list of token ids")
    return _of_ids(prompt, path)


def _of_ids(ids: list[object], path: str) -> pb.GenerateRequest:
    """Return a prompt of ids; they may be a million."""
    if not set(map(type, ids)) <= {int}:
        raise wrong_type(path, "a list of whole numbers, the token ids")
    try:
        array = np.array(ids, dtype=np.int64)
    except OverflowError as error:
        raise invalid(f"{path} has an id that is out of range", path) from error
    if array.size and not 0 <= int(array.min()) <= int(array.max()) <= MAX_UINT32:
        raise invalid(f"{path} has an id that is out of range", path)
    return pb.GenerateRequest(input_ids_le=array.astype("<u4").tobytes())


def _check_best_of(fields: Fields, num_outputs: int) -> None:
    best_of = fields.whole("best_of")
    if best_of is not None and best_of != num_outputs:
        raise invalid(
            f"best_of is {best_of}: only n itself, {num_outputs}, is supported",
            "best_of",
            "unsupported_parameter",
        )
