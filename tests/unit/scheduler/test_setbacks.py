"""Setbacks: what counts as begun again, and what as begun again in vain."""

from __future__ import annotations

from scheduler.setbacks import Setbacks


def test_each_way_to_begin_again_is_counted() -> None:
    """A client is told how often it happened; whoever began again is no newcomer."""
    new = Setbacks()
    preempted = new.with_preemption()
    recovered = new.with_recovery(is_at_fault=False, news=0)
    assert [each.has_any for each in (new, preempted, recovered)] == [False, True, True]
    both = preempted.with_recovery(is_at_fault=False, news=0)
    assert both == Setbacks(num_preemptions=1, num_recoveries=1)


def test_news_begins_the_count_in_vain_anew() -> None:
    """An output that gets ahead between two losses is not why routes are lost."""
    setbacks, in_vain = Setbacks(), []
    for news in (0, 0, 5, 5, 5):
        setbacks = setbacks.with_recovery(is_at_fault=True, news=news)
        in_vain.append(setbacks.num_in_vain)
    assert in_vain == [1, 2, 1, 2, 3]


def test_what_was_no_fault_of_it_is_not_in_vain() -> None:
    """Else a route that others break would end everybody's requests."""
    once = Setbacks().with_recovery(is_at_fault=True, news=2)
    again = once.with_recovery(is_at_fault=False, news=2)
    assert again == Setbacks(num_recoveries=2, num_in_vain=1, news_before=2)
