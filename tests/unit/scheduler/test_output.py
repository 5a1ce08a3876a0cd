"""How the last token of a request ends it."""

from __future__ import annotations

import numpy as np

from scheduler.detokenizer import Detokenizer
from scheduler.events import RequestSpec, Sampling
from scheduler.output import Ending, push_token
from scheduler.output_text import OutputText
from scheduler.request import Request
from scheduler.stop_strings import StopMatcher
from tests.bytes_tokenizer import EOS, bytes_tokenizer


def request_with(stop: list[str], max_new_tokens: int) -> Request:
    """Make a request whose text is bytes."""
    text = OutputText(Detokenizer(bytes_tokenizer()), StopMatcher(stop))
    spec = RequestSpec(
        request_id="r",
        prompt_ids=np.array([65], dtype=np.uint32),
        namespace=bytes(32),
        digests=(),
        max_new_tokens=max_new_tokens,
        min_new_tokens=0,
        end_ids=frozenset({EOS}),
        sampling=Sampling(temperature=0, top_p=1, top_k=0, min_p=0, seed=0),
        texts=(text,),
    )
    return Request(spec=spec)


def play(request: Request, text: str) -> tuple[str, Ending | None]:
    """Push bytes; return the text that came out and the end."""
    out, ending = "", None
    for byte in text.encode():
        assert ending is None
        piece, ending = push_token(request, byte)
        out += piece
    return out, ending


def test_a_stop_that_waited_for_an_earlier_one_matches_at_the_length() -> None:
    """The match must not be lost because the output ended while it was undecided."""
    request = request_with(["abcd", "b"], max_new_tokens=3)
    assert ("a", Ending(reason="stop", matched_stop="b")) == play(request, "abc")


def test_a_stop_that_waited_for_an_earlier_one_matches_at_an_end_token() -> None:
    """An end token settles which stop string begins first, as the length does."""
    request = request_with(["abcd", "b"], max_new_tokens=9)
    text, ending = play(request, "abc")
    assert ending is None
    rest, ending = push_token(request, EOS)
    assert ("a", Ending(reason="stop", matched_stop="b")) == (text + rest, ending)


def test_text_held_back_for_a_stop_string_comes_at_the_length() -> None:
    """What might have become a stop string is text when the output ends."""
    request = request_with(["abcd"], max_new_tokens=3)
    assert ("abc", Ending(reason="length")) == play(request, "abc")
