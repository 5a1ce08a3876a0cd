"""How the last token of a request ends it."""

from __future__ import annotations

import numpy as np

from scheduler.detokenizer import Detokenizer
from scheduler.events import RequestSpec, Sampling
from scheduler.output import Ending, finished, push_token, tell_prompt
from scheduler.output_text import OutputText
from scheduler.prefill import Prefill
from scheduler.request import Request
from scheduler.stop_strings import StopMatcher
from tests.bytes_tokenizer import EOS, bytes_tokenizer
from tests.letter_text import LetterText
from tests.specs import make_spec, zero_logprobs


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


def _told(request: Request, start: int, num_tokens: int) -> list[tuple[int, int]]:
    """Return start and length of what is told."""
    told = tell_prompt(request, start, zero_logprobs(num_tokens))
    return [(each.start, len(each.logprobs)) for each in told]


def test_prompt_logprobs_are_told_once_whatever_the_chunks() -> None:
    """A prefill that is repeated may be cut anew; clients count on parts without gaps."""
    request = Request(spec=make_spec("a", 20, prompt_top_logprobs=0))
    assert _told(request, 1, 4) == [(1, 4)]
    assert _told(request, 1, 3) == []
    assert _told(request, 4, 3) == [(5, 2)]
    assert _told(request, 7, 13) == [(7, 13)]
    assert request.num_prompt_logprobs == 19
    assert not request.needs_whole_prompt


def test_each_output_has_its_own_text() -> None:
    """O05: outputs of one prompt are cut at their own stops."""
    spec = make_spec("a", 4, max_new_tokens=2, num_outputs=2)
    request = Request(spec=spec, child=1)
    assert push_token(request, 65) == ("A", None)
    sinks = [text for text in spec.texts if isinstance(text, LetterText)]
    assert [sink.pushed for sink in sinks] == [[], [65]]


def test_what_is_told_of_the_prompt_is_of_the_first_run() -> None:
    """A resumed output repeats work; that is not the cost of the request's prompt."""
    request = Request(spec=make_spec("a", 40, max_new_tokens=9))
    request.last_prefill = Prefill(start=16, end=40, sent_ends=[32, 40])
    _, ending = push_token(request, 65)
    assert ending is None
    request.last_prefill = Prefill(start=32, end=41, sent_ends=[41])
    end = finished(request, Ending(reason="length"))
    assert (end.cached_tokens, end.chunk_tokens) == (16, (16, 8))
