"""What is written of an answer while it comes."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from chunkmesh.cli.answer import follow
from chunkmesh.errors import Unavailable
from chunkmesh.v1 import generation_pb2 as pb


def _chunk(text: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(text=text))


def test_text_is_written_as_it_comes_and_ends_its_line() -> None:
    """The end has all of it, and what was written is not written again."""
    written = io.StringIO()
    end = pb.GenerateResponse(complete=pb.GenerateComplete(text="one two"))
    answer = follow([_chunk("one"), _chunk(" two"), end], text_to=written)
    assert ("one two\n", "one two") == (written.getvalue(), answer.outputs[0].text)


@pytest.mark.parametrize(("texts", "expected"), [(("one",), "one\n"), ((), ""), (("a\n",), "a\n")])
def test_what_breaks_off_ends_its_line(texts: tuple[str, ...], expected: str) -> None:
    """The error that is told then would else stand behind the last word."""

    def replies() -> Iterator[pb.GenerateResponse]:
        yield from map(_chunk, texts)
        raise Unavailable("gone")

    written = io.StringIO()
    with pytest.raises(Unavailable):
        follow(replies(), text_to=written)
    assert expected == written.getvalue()
