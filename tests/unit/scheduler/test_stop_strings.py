"""Stop strings must hold whatever way the text is cut into pieces."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.stop_strings import StopMatcher


def first_stop(text: str, stops: list[str]) -> str | None:
    """Return the stop string that wins in a whole text, by the documented rule."""
    found = [stop for stop in stops if stop in text]
    return min(found, key=lambda stop: (text.index(stop), len(stop)), default=None)


def play(text: str, stops: list[str], cuts: list[int]) -> tuple[list[str], str | None]:
    """Push text cut at the given places; return all deltas and the stop string that matched."""
    matcher = StopMatcher(stops)
    borders = [0, *sorted(cuts), len(text)]
    deltas = [matcher.push(text[a:b]) for a, b in itertools.pairwise(borders)]
    return [*deltas, matcher.flush()], matcher.matched_stop


@settings(deadline=None)
@given(data=st.data())
def test_streamed_text_equals_the_whole_text_cut_at_its_first_stop(data: st.DataObject) -> None:
    """No letter may be lost, and none of a stop string sent, for any text, stops and cuts."""
    letters = st.text(alphabet="abc", max_size=6)
    text = data.draw(st.text(alphabet="abcd", max_size=40))
    stops = data.draw(st.lists(letters.filter(bool), max_size=4))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    stop = first_stop(text, stops)
    expected = text if stop is None else text[: text.index(stop)]
    deltas, matched = play(text, stops, cuts)
    assert "".join(deltas) == expected
    assert matched == stop


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    """What was sent cannot be taken back when the match completes (O02 a)."""
    matcher = StopMatcher(["two th"])
    assert [matcher.push(char) for char in "one two th"] == [*"one ", "", "", "", "", "", ""]
    assert matcher.matched_stop == "two th"


def test_a_match_that_fails_loses_nothing() -> None:
    """Text held back must arrive once it cannot match any more (O02 b)."""
    deltas, matched = play("one two tides", ["two th"], list(range(13)))
    assert "".join(deltas) == "one two tides"
    assert matched is None


def test_of_stops_that_begin_together_the_shortest_wins() -> None:
    """It is complete first, so no token is generated in vain (O02 c)."""
    matcher = StopMatcher(["two th", "two"])
    deltas = [matcher.push(char) for char in "one two"]
    assert "".join(deltas) == "one "
    assert matcher.matched_stop == "two"


@pytest.mark.parametrize("tail", ["d", "x", ""])
def test_a_stop_that_began_earlier_is_waited_for(tail: str) -> None:
    """Otherwise the result would depend on how the text was cut."""
    deltas, matched = play("abc" + tail, ["abcd", "bc"], [1, 2, 3])
    assert ("".join(deltas), matched) == (("", "abcd") if tail == "d" else ("a", "bc"))


def test_the_shortest_wins_also_while_an_earlier_beginning_is_waited_for() -> None:
    """The longer one completes meanwhile, and must not replace it."""
    deltas, matched = play("xabc.", ["xabcd", "ab", "abc"], [1, 2, 3, 4])
    assert ("".join(deltas), matched) == ("x", "ab")


def test_text_behind_a_match_is_dropped() -> None:
    """A token may hold more than the stop string."""
    matcher = StopMatcher(["."])
    assert matcher.push("end. And") == "end"
    assert matcher.push(" more") == ""
    assert matcher.flush() == ""


def test_without_stops_all_text_passes_at_once() -> None:
    """Most requests have none."""
    assert StopMatcher([]).push("abc") == "abc"


def test_time_is_linear_where_every_letter_may_begin_a_stop() -> None:
    """A naive search of held text takes quadratic time on such input."""
    matcher = StopMatcher(["a" * 255 + "b"])
    started = time.process_time()
    sent = sum(len(matcher.push("a")) for _ in range(100_000)) + len(matcher.flush())
    assert sent == 100_000
    assert time.process_time() - started < 10


def test_a_fresh_matcher_shares_the_stop_strings_but_no_text() -> None:
    """Each output of one request is searched on its own; preparing is paid once."""
    first = StopMatcher(["two th"])
    second = first.fresh()
    assert first.push("one two t") == "one "
    assert (second.push("hree"), second.flush()) == ("hree", "")
    assert (first.push("hree"), first.matched_stop) == ("", "two th")
    assert second.matched_stop is None
    assert second._root is first._root
