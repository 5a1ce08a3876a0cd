"""TimelineHistory: which requests are kept, and which of them are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from chunkmesh.errors import InvalidRequest
from scheduler.actions import PlannedEntry, SendMicrobatch
from scheduler.timeline import Timeline
from scheduler.timeline_history import RequestTimeline, TimelineHistory, chosen


def ended(
    request_id: str, *, arrived_s: float = 0.0, num_parts: int = 1, user: str = ""
) -> RequestTimeline:
    """Return a request of so many parts."""
    timeline = Timeline(max_microbatches=100)
    timeline.begin(1, 1)
    track = timeline.follow(request_id, arrived_s=arrived_s)
    entry = PlannedEntry(request_id=request_id, row=0, start=0, num_tokens=1, new_page_ids=())
    ids = np.zeros(1, dtype=np.uint32)
    for seq_no in range(num_parts):
        timeline.sent(
            SendMicrobatch(epoch=1, seq_no=seq_no, entries=(entry,), token_ids=ids, samples=())
        )
    return RequestTimeline(
        request_id=request_id,
        user=user,
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=1,
        first_token_us=1,
        ended_us=2,
        finish_reason="stop",
        track=track,
    )


def names(requests: TimelineHistory | list[RequestTimeline]) -> str:
    """Join the ids of requests."""
    return "".join(each.request_id for each in requests)


def test_the_last_requests_are_kept() -> None:
    """Memory must not grow with the number of requests served."""
    history = TimelineHistory(max_requests=3)
    for name in "abcde":
        history.add(ended(name))
    assert names(history) == "cde"


def test_long_requests_push_out_more_than_one() -> None:
    """Thirty-two answers of thousands of tokens would fill memory as well."""
    history = TimelineHistory(max_parts=10)
    for name, num_parts in (("a", 4), ("b", 4), ("c", 2), ("d", 5)):
        history.add(ended(name, num_parts=num_parts))
    assert names(history) == "cd"


def test_the_newest_is_kept_however_long_it_is() -> None:
    """Else a long prompt, of all requests, could not be looked at."""
    history = TimelineHistory(max_parts=10)
    history.add(ended("a", num_parts=5))
    history.add(ended("b", num_parts=50))
    assert names(history) == "b"
    history.add(ended("c"))
    assert names(history) == "c"


def test_the_last_to_arrive_are_chosen_in_order() -> None:
    """A short request that ends first has not come first."""
    known = [ended(name, arrived_s=at) for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0))]
    assert names(chosen(known, request_ids=[], last=2)) == "bc"
    assert names(chosen(known, request_ids=[], last=0)) == "abc"
    assert names(chosen(known, request_ids=[], last=9)) == "abc"


def test_the_later_of_two_requests_of_one_id_is_chosen() -> None:
    """Ids may come again, and the later one is what a user has before his eyes."""
    known = [ended("a", arrived_s=at) for at in (5.0, 1.0)] + [ended("b", arrived_s=2.0)]
    chosen_ones = chosen(known, request_ids=["a", "b", "a"], last=0)
    assert names(chosen_ones) == "ba"
    assert [2_000_000, 5_000_000] == [each.track.arrived_us for each in chosen_ones]


def test_an_id_that_is_not_kept_is_refused() -> None:
    """An empty answer would look like a request without microbatches."""
    with pytest.raises(InvalidRequest, match="no timeline of request 'x' is kept"):
        chosen([ended("a")], request_ids=["a", "x"], last=0)


def test_ids_that_users_share_are_their_own() -> None:
    """Else the timeline of one would hide that of another who chose the same id."""
    known = [ended("a", arrived_s=1), ended("a", arrived_s=2, user="b"), ended("a", arrived_s=3)]
    told = [(each.user, each.track.arrived_us) for each in chosen(known, request_ids=["a"], last=0)]
    assert [("b", 2_000_000), ("", 3_000_000)] == told
