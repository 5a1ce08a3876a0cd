"""From replies of the mesh to answers, whole and in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from chunkmesh.gateway.answer import Answer, AnswerHead, ChoiceForm
from chunkmesh.gateway.asked import Asked, StreamOptions
from chunkmesh.gateway.choice_forms import ChatChoices, CompletionChoices
from chunkmesh.gateway.token_names import TokenNames
from chunkmesh.v1 import generation_pb2 as pb

HEAD = AnswerHead(id="x-1", created_s=7, model="m", fingerprint="0123456789abcdef0123")


def answer(
    form: ChoiceForm,
    *,
    num_prompts: int = 1,
    num_outputs: int = 1,
    stream: StreamOptions | None = None,
) -> Answer:
    """Return an answer of which nothing has come."""
    asked = Asked(
        model="m",
        requests=(pb.GenerateRequest(),) * num_prompts,
        num_outputs=num_outputs,
        request_id="",
        stream=stream,
        names={},
    )
    return Answer(asked, HEAD, form)


def completion_form(*stop_ids: int) -> CompletionChoices:
    """Return the choices of completions."""
    return CompletionChoices(TokenNames(), frozenset(stop_ids))


def chunk(text: str, num_tokens: int, index: int = 0) -> pb.GenerateResponse:
    """Return new output."""
    return pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            text=text,
            index=index,
            prompt_tokens=10,
            cached_tokens=4,
            completion_tokens=num_tokens,
        )
    )


def end(text: str, num_tokens: int, index: int = 0, **more: Any) -> pb.GenerateResponse:
    """Return the end of an output."""
    return pb.GenerateResponse(
        complete=pb.GenerateComplete(
            text=text,
            index=index,
            prompt_tokens=10,
            cached_tokens=4,
            completion_tokens=num_tokens,
            **{"finish_reason": pb.FINISH_REASON_STOP, **more},
        )
    )


def choices_of(made: Answer, *replies: pb.GenerateResponse) -> list[Any]:
    """Return the choices of all pieces."""
    pieces: list[Any] = [piece for reply in replies for piece in made.pieces(0, reply)]
    return [choice for piece in pieces for choice in piece["choices"]]


def test_a_whole_completion() -> None:
    """Every field that OpenAI's reference has, and vLLM's stop_reason."""
    made = answer(completion_form())
    made.take(0, end("text", 3))
    assert {
        "id": "x-1",
        "object": "text_completion",
        "created": 7,
        "model": "m",
        "system_fingerprint": "fp_0123456789abcdef",
        "choices": [
            {
                "index": 0,
                "text": "text",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    } == made.whole()


def test_a_whole_chat() -> None:
    """The assistant's message."""
    made = answer(ChatChoices(TokenNames()))
    made.take(0, end("text", 3, finish_reason=pb.FINISH_REASON_LENGTH))
    whole: Any = made.whole()
    assert "chat.completion" == whole["object"]
    assert [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "text", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ] == whole["choices"]


def test_choices_stand_in_order_of_prompts_and_outputs() -> None:
    """Whichever ends first; each prompt is counted once for all of its outputs."""
    made = answer(completion_form(), num_prompts=2, num_outputs=2)
    for prompt, index in ((1, 1), (0, 1), (1, 0), (0, 0)):
        made.take(prompt, end(f"{prompt}{index}", 3, index))
    whole: Any = made.whole()
    assert [(0, "00"), (1, "01"), (2, "10"), (3, "11")] == [
        (each["index"], each["text"]) for each in whole["choices"]
    ]
    assert (20, 12) == (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"])


def test_a_streamed_completion() -> None:
    """The text in pieces, then why it ended."""
    made = answer(completion_form(), stream=StreamOptions())
    choices = choices_of(made, chunk("a", 1), chunk("", 2), chunk("b", 3), end("ab", 3))
    assert [("a", None), ("b", None), ("", "stop")] == [
        (choice["text"], choice["finish_reason"]) for choice in choices
    ]


def test_a_streamed_chat_begins_with_who_speaks() -> None:
    """Each choice does, before it says anything."""
    made = answer(ChatChoices(TokenNames()), num_outputs=2, stream=StreamOptions())
    choices = choices_of(made, chunk("a", 1, 1), chunk("b", 1, 0), end("a", 1, 1), end("b", 1, 0))
    begin = {"role": "assistant", "content": ""}
    assert [
        (1, begin),
        (1, {"content": "a"}),
        (0, begin),
        (0, {"content": "b"}),
        (1, {}),
        (0, {}),
    ] == [(choice["index"], choice["delta"]) for choice in choices]


def test_an_output_without_text_is_still_somebodys() -> None:
    """A client that waits for the role would wait for ever."""
    made = answer(ChatChoices(TokenNames()), stream=StreamOptions())
    choices = choices_of(made, end("", 1))
    assert [{"role": "assistant", "content": ""}, {}] == [each["delta"] for each in choices]


@pytest.mark.parametrize(
    ("options", "in_pieces", "at_the_end"),
    [
        (StreamOptions(), "absent", False),
        (StreamOptions(include_usage=True), None, True),
        (StreamOptions(include_usage=True, usage_in_all=True), 1, True),
        (StreamOptions(usage_in_all=True), 1, False),
    ],
)
def test_the_usage_of_a_stream(options: StreamOptions, in_pieces: object, at_the_end: bool) -> None:
    """Only if asked for: as OpenAI at the end, as vLLM in each piece."""
    made = answer(completion_form(), stream=options)
    (piece,) = made.pieces(0, chunk("a", 1))
    usage: Any = piece.get("usage", "absent")
    assert in_pieces == (usage["completion_tokens"] if isinstance(usage, dict) else usage)
    last: list[Any] = list(made.last_pieces())
    assert at_the_end == bool(last)
    assert [[]] * len(last) == [each["choices"] for each in last]


@pytest.mark.parametrize(
    ("matched", "expected"),
    [({"matched_stop": "x"}, "x"), ({"matched_token_id": 5}, 5), ({"matched_token_id": 2}, None)],
)
def test_what_stopped_an_output_is_told_if_the_client_named_it(
    matched: dict[str, Any], expected: object
) -> None:
    """The model's own end is a plain stop."""
    made = answer(completion_form(5))
    made.take(0, end("", 1, **matched))
    whole: Any = made.whole()
    assert expected == whole["choices"][0]["stop_reason"]


def test_progress_is_no_news() -> None:
    """A piece without a choice would be taken for the usage."""
    made = answer(completion_form(), stream=StreamOptions())
    assert [] == list(made.pieces(0, pb.GenerateResponse(progress=pb.PromptProgress(total=5))))
