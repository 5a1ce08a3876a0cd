"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

import pytest

from chunkmesh.gateway.logprob_forms import TextOffsets, chat_logprobs, completion_logprobs
from chunkmesh.gateway.token_names import TokenNames
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb

TOKENS = {0: b"a", 1: b"b", 2: b"\xc3", 3: b"\xa9", 4: b"<eos>"}


@pytest.fixture
def names() -> TokenNames:
    """Know a few tokens, two of which are the halves of a character."""
    known = TokenNames()
    known.learn(TOKENS.keys(), TOKENS.values())
    return known


def told(logprobs: list[float], top: list[list[tuple[int, float]]]) -> common_pb2.TokenLogprobs:
    """Return a message of tokens with as many likeliest ids each."""
    return common_pb2.TokenLogprobs(
        logprobs=logprobs,
        num_top=len(top[0]) if top else 0,
        top_ids=[token_id for row in top for token_id, _ in row],
        top_logprobs=[logprob for row in top for _, logprob in row],
    )


def test_a_completion_without_likeliest_tokens(names: TokenNames) -> None:
    """logprobs: 0 asks for the chosen tokens' only."""
    form = completion_logprobs([0, 4], told([-0.5, -0.25], []), names, TextOffsets())
    assert {
        "tokens": ["a", "<eos>"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": None,
        "text_offset": [0, 1],
    } == form


def test_the_chosen_token_is_always_among_the_likeliest(names: TokenNames) -> None:
    """So there may be one more than was asked for, as OpenAI documents."""
    message = told([-2.0, -0.5], [[(1, -0.5)], [(1, -0.5)]])
    form = completion_logprobs([0, 1], message, names, TextOffsets())
    assert [{"b": -0.5, "a": -2.0}, {"b": -0.5}] == form["top_logprobs"]


def test_offsets_go_on_over_pieces_of_a_stream(names: TokenNames) -> None:
    """They count characters, of which one may be two tokens."""
    offsets = TextOffsets()
    first = completion_logprobs([0, 2], told([-1.0, -1.0], []), names, offsets)
    second = completion_logprobs([3, 1], told([-1.0, -1.0], []), names, offsets)
    assert ([0, 1], [1, 2]) == (first["text_offset"], second["text_offset"])


def test_half_a_character_is_written_as_bytes(names: TokenNames) -> None:
    """In U+FFFD the client could not tell one half from another."""
    form = completion_logprobs([2, 3], told([-1.0, -1.0], []), names, TextOffsets())
    assert ["bytes:\\xc3", "bytes:\\xa9"] == form["tokens"]


def test_a_chat(names: TokenNames) -> None:
    """Each token comes with its bytes, which together are the text."""
    form = chat_logprobs([2, 3], told([-1.0, -0.5], [[(2, -1.0)], [(1, -0.25)]]), names)
    assert {
        "content": [
            {
                "token": "\\xc3",
                "logprob": -1.0,
                "bytes": [0xC3],
                "top_logprobs": [{"token": "\\xc3", "logprob": -1.0, "bytes": [0xC3]}],
            },
            {
                "token": "\\xa9",
                "logprob": -0.5,
                "bytes": [0xA9],
                "top_logprobs": [{"token": "b", "logprob": -0.25, "bytes": [98]}],
            },
        ],
        "refusal": None,
    } == form


def test_what_is_ruled_out_has_openais_number(names: TokenNames) -> None:
    """The lowest number of a float says nothing to a client."""
    form = completion_logprobs([0], told([-3.4e38], [[(1, 0.0)]]), names, TextOffsets())
    assert [-9999.0] == form["token_logprobs"]
    assert [{"b": 0.0, "a": -9999.0}] == form["top_logprobs"]


def test_only_what_will_be_written_must_be_known(names: TokenNames) -> None:
    """The mesh is asked for tokens once, and for none without log-probabilities."""
    logprobs = told([-1.0, -1.0], [[(9, -1.0)], [(8, -1.0)]])
    chunk = pb.GenerateStreamChunk(token_ids=[0, 7], logprobs=logprobs)
    complete = pb.GenerateComplete(output_ids=[0, 6], logprobs=logprobs)
    assert [7, 8, 9] == names.unknown(pb.GenerateResponse(chunk=chunk))
    assert [6, 8, 9] == names.unknown(pb.GenerateResponse(complete=complete))
    plain = pb.GenerateStreamChunk(token_ids=[7])
    assert [] == names.unknown(pb.GenerateResponse(chunk=plain))
    assert [] == names.unknown(pb.GenerateResponse(progress=pb.PromptProgress()))
