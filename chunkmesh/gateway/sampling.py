"""The sampling parameters of completions and chats. Pure.

Only types are checked here, and numbers that no message could hold; ranges are the mesh's.
"""

from __future__ import annotations

from typing import Any

from chunkmesh.gateway.api_error import invalid
from chunkmesh.gateway.asked import MAX_CHOICES
from chunkmesh.gateway.fields import MAX_UINT32, Fields, number, whole, wrong_type
from chunkmesh.v1 import generation_pb2 as pb

MAX_STOP_STRINGS = 4
MAX_TOP_LOGPROBS = 20
_MAX_BIASES = 1024
_MAX_SEED = (1 << 64) - 1
_MIN_SEED = -(1 << 63)
_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Numbers that have one name on both sides."""
NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "text": "prompt",
    "input_ids": "prompt",
    "input_ids_le": "prompt",
    "chat": "messages",
}
"""The mesh's fields -> the client's, where they differ."""


def take_sampling(fields: Fields) -> pb.SamplingParams:
    """Take all but the output's length and the log-probabilities.

    Raises:
        ApiError: a field is no such thing.
    """
    given: dict[str, Any] = {name: fields.number(name) for name in _SAME_NAME}
    top_k = fields.whole("top_k", least=-1)
    seed = fields.whole("seed", least=_MIN_SEED, most=_MAX_SEED)
    return pb.SamplingParams(
        **given,
        n=fields.whole("n", least=1, most=MAX_CHOICES),
        # vLLM's clients write -1 for all.
        top_k=None if top_k is None else max(top_k, 0),
        seed=None if seed is None else seed & _MAX_SEED,
        min_new_tokens=fields.whole("min_tokens"),
        ignore_eos=bool(fields.flag("ignore_eos")),
        skip_special_tokens=fields.flag("skip_special_tokens"),
        stop=_take_stop(fields),
        stop_token_ids=_take_stop_ids(fields),
        logit_bias=_take_logit_bias(fields),
    )


def _take_stop(fields: Fields) -> list[str]:
    path, stop = fields.path("stop"), fields.take("stop")
    if stop is None:
        return []
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or not all(isinstance(each, str) for each in strings):
        raise wrong_type(path, "a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid(f"{path} has {len(strings)} strings, limit {MAX_STOP_STRINGS}", path)
    return strings


def _take_stop_ids(fields: Fields) -> list[int]:
    path = fields.path("stop_token_ids")
    ids = fields.members("stop_token_ids") or []
    return [whole(each, f"{path}[{index}]") for index, each in enumerate(ids)]


def _take_logit_bias(fields: Fields) -> dict[int, float]:
    path, biases = fields.path("logit_bias"), fields.take("logit_bias")
    if biases is None:
        return {}
    if not isinstance(biases, dict):
        raise wrong_type(path, "an object of token ids")
    if len(biases) > _MAX_BIASES:
        raise invalid(f"{path} has {len(biases)} ids, limit {_MAX_BIASES}", path)
    taken = {}
    for key, bias in biases.items():
        is_id = key.isascii() and key.isdigit() and len(key) <= len(str(MAX_UINT32))
        if not is_id or int(key) > MAX_UINT32:
            raise invalid(f"{path} has a key that is no token id", path)
        taken[int(key)] = number(bias, path)
    return taken
