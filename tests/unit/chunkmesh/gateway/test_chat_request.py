"""POST /v1/chat/completions: from JSON to a request of the mesh."""

from __future__ import annotations

from typing import Any

import pytest

from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.asked import Asked
from chunkmesh.gateway.chat_request import read_chat
from chunkmesh.gateway.known_fields import IGNORED, UNSUPPORTED_CHAT
from chunkmesh.v1 import generation_pb2 as pb

HELLO = {"role": "user", "content": "hello"}


def read(*messages: Any, **fields: Any) -> Asked:
    """Read a body with these messages, or one that says hello."""
    return read_chat({"model": "m", "messages": list(messages) or [HELLO], **fields})


def said(*messages: Any) -> list[tuple[str, str]]:
    """Return who says what in the mesh's request."""
    (request,) = read(*messages).requests
    return [(message.role, message.content) for message in request.chat.messages]


def refusal(*messages: Any, **fields: Any) -> ApiError:
    """Return the error of such a body."""
    with pytest.raises(ApiError) as caught:
        read(*messages, **fields)
    assert 400 == caught.value.status
    return caught.value


def test_an_answer_goes_on_until_it_ends() -> None:
    """A client that names no length wants all of it."""
    (request,) = read().requests
    expected = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])
    assert (
        pb.GenerateRequest(chat=expected, sampling_params=pb.SamplingParams(until_full=True))
        == request
    )


def test_text_parts_stand_on_lines_of_their_own() -> None:
    """As vLLM's server joins them; most clients send one."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert [("user", "a\nb")] == said({"role": "user", "content": parts})


def test_a_developer_is_the_system() -> None:
    """OpenAI has renamed it; templates of models know the old name only."""
    assert [("system", "x"), ("user", "hello")] == said(
        {"role": "developer", "content": "x"}, HELLO
    )


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    """Clients keep a conversation in the messages that they got."""
    message: dict[str, Any] = {
        "role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None,
        "tool_calls": None, "function_call": None, "name": "n",
    }  # fmt: skip
    assert [("assistant", "x")] == said(message)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("x", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 1}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "x", "colour": 1}, "messages[0].colour"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(message: Any, param: str) -> None:
    """A conversation may have hundreds."""
    assert param == refusal(message).param


@pytest.mark.parametrize("messages", [None, [], "hello"])
def test_there_must_be_messages(messages: object) -> None:
    """Else there is no prompt."""
    with pytest.raises(ApiError) as caught:
        read_chat({"model": "m", "messages": messages})
    assert "messages" == caught.value.param


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_length_has_two_names(name: str) -> None:
    """And what the mesh says of it is told by the one that the client used."""
    asked = read(**{name: 7})
    assert 7 == asked.requests[0].sampling_params.max_new_tokens
    assert not asked.requests[0].sampling_params.until_full
    assert name == asked.names["max_new_tokens"]


def test_two_lengths_exclude_each_other() -> None:
    """One of them would be without effect."""
    assert "max_tokens" == refusal(max_tokens=1, max_completion_tokens=2).param


def test_logprobs_are_asked_for_by_a_flag() -> None:
    """Other than in completions."""
    sent = read(logprobs=True, top_logprobs=3).requests[0].sampling_params
    assert (True, 3) == (sent.logprobs, sent.top_logprobs)
    assert "top_logprobs" == refusal(top_logprobs=3).param
    assert "logprobs" == refusal(logprobs=3).param


def test_where_the_prompt_ends_can_be_said() -> None:
    """As vLLM's clients say it."""
    chat = read(add_generation_prompt=False, continue_final_message=True).requests[0].chat
    assert (True, False, True) == (
        chat.HasField("add_generation_prompt"),
        chat.add_generation_prompt,
        chat.continue_final_message,
    )


@pytest.mark.parametrize("field", IGNORED)
def test_what_says_who_asks_is_ignored(field: str) -> None:
    """No answer changes by it."""
    assert read() == read(**{field: "x"})


@pytest.mark.parametrize("field", UNSUPPORTED_CHAT)
def test_what_openai_knows_and_a_mesh_does_not_is_refused(field: str) -> None:
    """An answer without it would look right."""
    error = refusal(**{field: [{"asks": "for something"}]})
    assert (field, "unsupported_parameter") == (error.param, error.code)


@pytest.mark.parametrize(
    ("field", "harmless"),
    [(field, value) for field, values in UNSUPPORTED_CHAT.items() for value in values],
)
def test_what_asks_for_nothing_is_taken(field: str, harmless: object) -> None:
    """Clients write defaults out."""
    assert read() == read(**{field: harmless})
