"""How far a prefill is, and what is wanted of its rest."""

from __future__ import annotations

from scheduler.prefill import Prefill


def test_counts_sent_and_done() -> None:
    """Progress counts what is done, the next chunk follows what was sent."""
    prefill = Prefill(start=16, end=150, borders=(16, 80, 144, 150))
    assert (prefill.next_start, prefill.wanted_end(), prefill.done_tokens) == (16, 80, 16)
    prefill.send(80)
    prefill.send(144)
    prefill.num_done = 1
    assert (prefill.next_start, prefill.wanted_end(), prefill.done_tokens) == (144, 150, 80)
    assert prefill.sent_chunk_tokens == (64, 64)
    assert (prefill.num_planned, prefill.num_left, prefill.num_in_flight) == (3, 2, 1)
    prefill.send(150)
    assert prefill.is_sent
    assert (prefill.num_planned, prefill.wanted_end()) == (3, None)


def test_prediction_becomes_the_truth() -> None:
    """Shorter chunks than wanted add some; when all are sent the number is what was sent."""
    prefill = Prefill(start=0, end=100, borders=(0, 50, 100))
    planned = []
    for end in (40, 60, 90, 100):
        prefill.send(end)
        planned.append(prefill.num_planned)
    assert planned == [3, 3, 4, 4]


def test_nothing_is_wanted_off_a_border() -> None:
    """A remnant up to the next wanted border would be a chunk of its own."""
    prefill = Prefill(start=0, end=100, borders=(0, 50, 100))
    prefill.send(40)
    assert prefill.wanted_end() is None
    prefill.borders = (40, 70, 100)
    assert prefill.wanted_end() == 70


def test_without_borders_one_more_chunk_is_expected() -> None:
    """Nobody has said how the rest will be cut."""
    prefill = Prefill(start=0, end=100)
    assert (prefill.num_planned, prefill.wanted_end()) == (1, None)
