"""Detokenisation and stop strings together, as the engine drives them."""

from __future__ import annotations

from scheduler.detokenizer import Detokenizer
from scheduler.events import TextSink
from scheduler.output_text import OutputText
from scheduler.stop_strings import StopMatcher
from tests.bytes_tokenizer import bytes_tokenizer

TOKENIZER = bytes_tokenizer()


def play(text: str, stops: list[str]) -> tuple[list[str], str | None]:
    """Push ids until a stop string has matched, as the engine does."""
    sink: TextSink = OutputText(Detokenizer(TOKENIZER), StopMatcher(stops))
    deltas = []
    for token_id in text.encode():
        deltas.append(sink.push(token_id))
        if sink.matched_stop is not None:
            return deltas, sink.matched_stop
    return [*deltas, sink.flush()], sink.matched_stop


def test_a_stop_string_in_pieces_is_never_sent() -> None:
    """The output ends with the id that completes it, and no later (O02 a)."""
    deltas, matched = play("one two three four", ["two th"])
    assert deltas == [*"one ", "", "", "", "", "", ""]
    assert matched == "two th"


def test_text_that_only_resembles_a_stop_string_arrives() -> None:
    """No letter is lost (O02 b)."""
    deltas, matched = play("one two tides", ["two th"])
    assert "".join(deltas) == "one two tides"
    assert matched is None


def test_the_first_of_several_stop_strings_wins() -> None:
    """Both begin at the same letter (O02 c)."""
    deltas, _ = play("one two three four", ["two th", "two"])
    assert "".join(deltas) == "one "


def test_the_prompt_is_not_searched() -> None:
    """A prompt that ends in `tw` does not complete a stop string of the output (O02 d)."""
    deltas, matched = play("o three", ["two"])
    assert "".join(deltas) == "o three"
    assert matched is None


def test_a_stop_string_may_hold_characters_of_several_ids() -> None:
    """The search is in text, not in ids."""
    deltas, matched = play("hot \U0001f336 sauce", ["\U0001f336"])
    assert "".join(deltas) == "hot "
    assert matched == "\U0001f336"


def test_flush_sends_held_text_and_an_unfinished_character() -> None:
    """Everything generated is shown when the limit ends the output."""
    sink = OutputText(Detokenizer(TOKENIZER), StopMatcher(["two"]))
    deltas = [sink.push(token_id) for token_id in [*b"a tw", 0xF0, 0x9F]]
    assert [*deltas, sink.flush()] == ["a", " ", "", "", "", "", "tw\ufffd"]


def test_flush_may_complete_a_stop_string() -> None:
    """One that waited for an earlier beginning is decided when nothing follows."""
    deltas, matched = play("abc", ["abcd", "bc"])
    assert "".join(deltas) == "a"
    assert matched == "bc"
