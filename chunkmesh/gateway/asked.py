"""What one HTTP request asks of the mesh, once its JSON is read. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from chunkmesh.gateway.api_error import invalid
from chunkmesh.gateway.fields import Fields
from chunkmesh.v1 import generation_pb2 as pb

MAX_CHOICES = 128
"""Of one HTTP request: its prompts times the outputs of each."""
_MAX_ID_CHARS = 120
"""What the mesh takes, less what sets the prompts of one request apart."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request."""

    model: str
    requests: tuple[pb.GenerateRequest, ...]
    """One a prompt, at least one; without their request_id if the client has given none."""
    num_outputs: int
    """Of each prompt, >= 1."""
    request_id: str
    """Empty if the client has given none."""
    stream: StreamOptions | None
    """None answers once."""
    names: Mapping[str, str]
    """The mesh's fields -> the client's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How an answer comes in pieces."""

    include_usage: bool = False
    """Whether one more piece at the end tells the usage."""
    usage_in_all: bool = False
    """Whether each piece tells the usage so far."""


def take_stream_options(fields: Fields) -> StreamOptions | None:
    """Take stream and stream_options.

    Raises:
        ApiError: one is no such thing, or there are options of no stream.
    """
    is_stream, options = fields.flag("stream"), fields.inner("stream_options")
    if options is None:
        return StreamOptions() if is_stream else None
    if not is_stream:
        raise invalid("stream_options is only for stream: true", "stream_options")
    taken = StreamOptions(
        include_usage=bool(options.flag("include_usage")),
        usage_in_all=bool(options.flag("continuous_usage_stats")),
    )
    options.drop(("include_obfuscation",))
    options.end()
    return taken


def take_model(fields: Fields) -> str:
    """Take the model's name.

    Raises:
        ApiError: there is none.
    """
    model = fields.text("model")
    if not model:
        raise invalid("model is missing", "model", "missing_required_parameter")
    return model


def take_request_id(fields: Fields) -> str:
    """Take the id that the client has chosen; empty without.

    Raises:
        ApiError: it is too long, or not to be shown in a terminal.
    """
    request_id = fields.text("request_id") or ""
    if len(request_id) > _MAX_ID_CHARS or not request_id.isprintable():
        raise invalid(
            f"request_id must be at most {_MAX_ID_CHARS} printable characters", "request_id"
        )
    return request_id


def whole_request(
    prompt: pb.GenerateRequest, fields: Fields, params: pb.SamplingParams, *, is_stream: bool
) -> pb.GenerateRequest:
    """Take what belongs to no sampling, and return a request for this prompt."""
    request = pb.GenerateRequest(
        sampling_params=params,
        stream=is_stream,
        cache_salt=fields.text("cache_salt") or "",
        priority=fields.whole("priority", least=-100, most=100) or 0,
    )
    request.MergeFrom(prompt)
    return request
