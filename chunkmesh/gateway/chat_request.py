"""Reads the JSON of POST /v1/chat/completions. Pure."""

from __future__ import annotations

from chunkmesh.gateway.api_error import invalid
from chunkmesh.gateway.asked import (
    Asked,
    take_model,
    take_request_id,
    take_stream_options,
    whole_request,
)
from chunkmesh.gateway.fields import Fields, wrong_type
from chunkmesh.gateway.known_fields import (
    IGNORED,
    IGNORED_IN_MESSAGE,
    UNSUPPORTED_CHAT,
    UNSUPPORTED_MESSAGE,
)
from chunkmesh.gateway.sampling import MAX_TOP_LOGPROBS, NAMES, take_sampling
from chunkmesh.v1 import generation_pb2 as pb

_MAX_MESSAGES = 16384
_ROLES = {"developer": "system"}
"""OpenAI's newer name -> the one that chat templates know."""
_TOOL_ROLES = {"tool", "function"}


def read_chat(body: object) -> Asked:
    """Return what the body of a request asks for.

    Raises:
        ApiError: it cannot be served; names the field.
    """
    fields = Fields(body)
    model, stream = take_model(fields), take_stream_options(fields)
    request_id = take_request_id(fields)
    chat = _take_chat(fields)
    params = take_sampling(fields)
    length_name = _take_length(fields, params)
    _take_logprobs(fields, params)
    request = whole_request(
        pb.GenerateRequest(chat=chat), fields, params, is_stream=stream is not None
    )
    fields.drop(IGNORED)
    fields.refuse(UNSUPPORTED_CHAT)
    fields.end()
    return Asked(
        model=model,
        requests=(request,),
        num_outputs=params.n or 1,
        request_id=request_id,
        stream=stream,
        names={**NAMES, "max_new_tokens": length_name},
    )


def _take_length(fields: Fields, params: pb.SamplingParams) -> str:
    """Take the output's length by its new or old name, and return that; without, no limit."""
    by_name = {
        name: fields.whole(name, least=1) for name in ("max_completion_tokens", "max_tokens")
    }
    given = {name: value for name, value in by_name.items() if value is not None}
    if len(set(given.values())) > 1:
        raise invalid("max_tokens and max_completion_tokens exclude each other", "max_tokens")
    for name, value in given.items():
        params.max_new_tokens = value
        return name
    params.until_full = True
    return "max_completion_tokens"


def _take_logprobs(fields: Fields, params: pb.SamplingParams) -> None:
    wanted = bool(fields.flag("logprobs"))
    top_logprobs = fields.whole("top_logprobs", most=MAX_TOP_LOGPROBS)
    if top_logprobs and not wanted:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if wanted:
        params.logprobs, params.top_logprobs = True, top_logprobs or 0


def _take_chat(fields: Fields) -> pb.Chat:
    messages = fields.members("messages")
    if not messages:
        raise invalid("messages is missing or empty", "messages", "missing_required_parameter")
    if len(messages) > _MAX_MESSAGES:
        raise invalid(f"{len(messages)} messages, limit {_MAX_MESSAGES}", "messages")
    return pb.Chat(
        messages=[_message(each, f"messages[{index}]") for index, each in enumerate(messages)],
        add_generation_prompt=fields.flag("add_generation_prompt"),
        continue_final_message=bool(fields.flag("continue_final_message")),
    )


def _message(value: object, path: str) -> pb.ChatMessage:
    fields = Fields(value, path=path)
    role = fields.text("role")
    if not role:
        raise invalid(f"{path}.role is missing", f"{path}.role", "missing_required_parameter")
    if role in _TOOL_ROLES:
        raise invalid(
            f"{path}.role: tools are not supported here", f"{path}.role", "unsupported_parameter"
        )
    content = fields.take("content")
    if content is None and role != "assistant":
        raise invalid(f"{path}.content is missing", f"{path}.content", "missing_required_parameter")
    fields.refuse(UNSUPPORTED_MESSAGE)
    fields.drop(IGNORED_IN_MESSAGE)
    fields.end()
    return pb.ChatMessage(role=_ROLES.get(role, role), content=_text_of(content, f"{path}.content"))


def _text_of(content: object, path: str) -> str:
    """Return a message's text; parts stand on lines of their own, as vLLM writes them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(path, "a string or a list of text parts")
    return "\n".join(_part(each, f"{path}[{index}]") for index, each in enumerate(content))


def _part(value: object, path: str) -> str:
    fields = Fields(value, path=path)
    kind = fields.text("type")
    if kind != "text":
        raise invalid(
            f"{path}.type must be text: nothing else is supported here",
            f"{path}.type",
            "unsupported_parameter",
        )
    text = fields.text("text")
    if text is None:
        raise invalid(f"{path}.text is missing", f"{path}.text", "missing_required_parameter")
    fields.drop(("cache_control",))
    fields.end()
    return text
