"""DecodeGroups: times stay equal, steps wait for results, movers are not in flight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.decode_groups import DecodeGroups
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.request import Request
from scheduler.row_times import RowTimes
from tests.model_times import arrival, simulate
from tests.specs import make_spec


def _requests(count: int) -> list[Request]:
    """Return requests to group."""
    return [Request(spec=make_spec(f"r{index}", 8)) for index in range(count)]


def _filled(num_groups: int, requests: list[Request]) -> DecodeGroups:
    """Return groups with requests."""
    groups = DecodeGroups(num_groups)
    for request in requests:
        groups.add(request)
    return groups


def _sizes(groups: DecodeGroups) -> list[int]:
    """Return the members of each group."""
    return [len(group.members) for group in groups._groups]


def test_requests_are_spread() -> None:
    """Two stages idle if all rows of four requests go in one microbatch."""
    assert _sizes(_filled(2, _requests(1))) == [1, 0]
    assert _sizes(_filled(2, _requests(4))) == [2, 2]
    assert _sizes(_filled(3, _requests(7))) == [3, 2, 2]


def test_groups_take_turns_and_wait_for_results() -> None:
    """A step needs the token of the step before."""
    requests = _requests(4)
    groups = _filled(2, requests)
    first, second = groups.take_ready(), groups.take_ready()
    assert sorted(r.request_id for r in (*first, *second)) == ["r0", "r1", "r2", "r3"]
    assert groups.take_ready() == ()
    groups.arrived([first[0]])
    assert groups.take_ready() == ()
    groups.arrived([first[1]])
    assert groups.take_ready() == first


def test_group_that_waits_longest_goes_first() -> None:
    """Otherwise one group could starve when the window has room for one microbatch only."""
    groups = _filled(2, _requests(2))
    first = groups.take_ready()
    groups.arrived(list(first))
    assert groups.take_ready() != first


def test_removal_balances() -> None:
    """When one group's requests end, half of the other's move over."""
    requests = _requests(6)
    groups = _filled(2, requests)
    for request in requests[0::2]:
        groups.remove(request)
    assert sorted(_sizes(groups)) == [1, 2]
    groups.remove(requests[0])
    assert sum(_sizes(groups)) == 3


def test_member_in_flight_is_not_moved() -> None:
    """A request must never be in two microbatches at once; it moves when its result is in."""
    requests = _requests(4)
    groups = _filled(2, requests)
    flying = groups.take_ready()
    for request in requests:
        if request not in flying:
            groups.remove(request)
    assert sorted(_sizes(groups)) == [0, 2]
    assert groups.take_ready() == ()
    groups.arrived(list(flying))
    assert _sizes(groups) == [1, 1]


def test_removed_member_does_not_hold_its_group_back() -> None:
    """The result of a cancelled request is not waited for."""
    requests = _requests(2)
    groups = _filled(1, requests)
    assert len(groups.take_ready()) == 2
    groups.remove(requests[0])
    groups.arrived([requests[1]])
    assert groups.take_ready() == (requests[1],)


def test_stalled_member_stays_behind() -> None:
    """One that waits for a page must not hold up those that step with it, nor be sent."""
    requests = _requests(3)
    groups = _filled(1, requests)
    assert groups.take_ready({requests[1]: None}) == (requests[0], requests[2])
    assert groups.take_ready() == ()
    groups.arrived([requests[0], requests[2]])
    assert groups.take_ready() == tuple(requests)


def test_group_of_stalled_members_lets_others_go() -> None:
    """Else a group without pages would take every turn and send nothing."""
    requests = _requests(2)
    groups = _filled(2, requests)
    assert groups.take_ready({requests[0]: None}) == (requests[1],)
    assert groups.take_ready({requests[0]: None}) == ()
    assert groups.take_ready() == (requests[0],)


_LATENCY = PipelineLatency(
    (StageLatency(fixed_ms=1.0, ms_per_token=0.1, ms_per_row=0.1, ms_per_row_token=0.001),) * 2
)
"""A row behind 100,000 tokens takes 100.1 ms more, one behind 1000 takes 1.1 ms."""


def _of_lengths(*lengths: int) -> list[Request]:
    """Return requests that look at so many tokens."""
    return [
        Request(spec=make_spec(f"r{index}", np.zeros(length, dtype=np.uint32)))
        for index, length in enumerate(lengths)
    ]


def _timed(
    num_groups: int, requests: list[Request], *, max_members: int | None = None
) -> DecodeGroups:
    """Return groups by a latency with requests."""
    groups = DecodeGroups(num_groups, _LATENCY, max_members=max_members)
    for request in requests:
        groups.add(request)
    return groups


def _lengths(groups: DecodeGroups) -> list[list[int]]:
    """Return the tokens of each group's members."""
    return [[member.known_tokens for member in group.members] for group in groups._groups]


def test_long_row_weighs_as_much_as_many_short_ones() -> None:
    """Stages move at the pace of the slowest group: 100K of context beside five rows is too much.

    By count both groups would have six rows.
    """
    groups = _timed(2, _of_lengths(100_000, *[1000] * 11))
    assert _lengths(groups) == [[100_000], [1000] * 11]


@pytest.mark.parametrize(
    "latency",
    [None, PipelineLatency((StageLatency(fixed_ms=1.0, ms_per_token=0.1),) * 2)],
    ids=["no model", "no terms of rows"],
)
def test_rows_are_counted_if_their_times_are_unknown(latency: PipelineLatency | None) -> None:
    """A fit may have seen no decode rows: then none would weigh anything."""
    groups = DecodeGroups(2, latency)
    for request in _of_lengths(100_000, 1000, 1000, 1000):
        groups.add(request)
    assert _lengths(groups) == [[100_000, 1000], [1000, 1000]]


def test_the_right_row_moves_when_a_group_gets_short() -> None:
    """Moving the last one that joined, a long one, would only swap long and short."""
    requests = _of_lengths(50_000, 20_000, 30_000, 30_000, 51_000)
    groups = _timed(2, requests)
    assert _lengths(groups) == [[50_000, 30_000], [20_000, 30_000, 51_000]]
    groups.remove(requests[0])
    assert _lengths(groups) == [[30_000, 30_000], [20_000, 51_000]]


def test_no_row_moves_for_what_the_model_cannot_tell() -> None:
    """A mover waits for the group that it joins: that is not worth a few percent."""
    requests = _of_lengths(40_000, 40_000, 1000, 1000)
    groups = _timed(2, requests)
    assert _lengths(groups) == [[40_000, 1000], [40_000, 1000]]
    groups.remove(requests[2])
    assert _lengths(groups) == [[40_000], [40_000, 1000]]


def test_no_row_moves_if_launching_a_step_takes_longest() -> None:
    """Two short rows in one step take what one takes; in two they would be launched twice."""
    floor = StageLatency(
        floor_ms=60.0, ms_per_token=0.1, ms_per_row=0.1, ms_per_row_token=0.001, edge_ms=1.0
    )
    groups = DecodeGroups(2, PipelineLatency((floor, floor)))
    requests = _of_lengths(1000, 1000, 1000, 1000)
    for request in requests:
        groups.add(request)
    groups.remove(requests[1])
    groups.remove(requests[3])
    assert _lengths(groups) == [[1000, 1000], []]


def test_groups_do_not_outgrow_a_microbatch() -> None:
    """Many short rows are one group's time, but more than one microbatch may hold."""
    requests = _of_lengths(100_000, *[1000] * 5)
    groups = _timed(2, requests, max_members=3)
    assert _lengths(groups) == [[100_000, 1000, 1000], [1000] * 3]
    groups.remove(requests[5])
    assert _lengths(groups) == [[100_000, 1000], [1000, 1000, 1000]]


def test_new_latency_moves_rows() -> None:
    """A refit may find that contexts cost more than was thought."""
    groups = DecodeGroups(2)
    for request in _of_lengths(100_000, 1000, 1000, 1000):
        groups.add(request)
    groups.replace(_LATENCY)
    assert _lengths(groups) == [[100_000], [1000, 1000, 1000]]


def test_engine_tells_the_groups_what_a_route_takes() -> None:
    """Of eight requests on two stages the one with a long context decodes alone."""
    arrivals = [arrival("long", 40_000, new=30)]
    arrivals += [arrival(f"r{index}", 100, new=60) for index in range(7)]
    done = simulate(arrivals, _LATENCY, known=_LATENCY)
    steps = [{entry.request_id for entry in each.microbatch.entries} for each in done.microbatches]
    assert [step for step in steps[-80:] if "long" in step][-20:] == [{"long"}] * 20


def test_the_stage_that_is_slowest_with_a_group_counts() -> None:
    """One stage may pay for rows, another for contexts."""
    latency = PipelineLatency((StageLatency(ms_per_row=1.0), StageLatency(ms_per_row_token=0.001)))
    groups = DecodeGroups(2, latency)
    for request in _of_lengths(8000, 100, 100, 100, 100, 100, 100, 100):
        groups.add(request)
    assert _lengths(groups) == [[8000], [100] * 7]


def test_groups_settle_at_once() -> None:
    """A move between two groups may make room for one from a third that was looked at before."""
    groups = DecodeGroups(3, _LATENCY)
    for request in _of_lengths(65, 1, 181, 579, 632, 1359, 578, 347):
        groups.add(request)
    groups.arrived([])
    settled = _lengths(groups)
    groups.arrived([])
    assert settled == _lengths(groups)


@given(st.data())
def test_any_order_leaves_groups_alike(data: st.DataObject) -> None:
    """Whatever joins and leaves, no move that anybody could make is left, and none comes after."""
    groups = DecodeGroups(data.draw(st.integers(1, 4)), _LATENCY)
    times = RowTimes.of(_LATENCY)
    inside: list[Request] = []
    for length in data.draw(st.lists(st.integers(-9, 3000), min_size=1, max_size=30)):
        if length > 0:
            inside += _of_lengths(length)
            groups.add(inside[-1])
        elif inside:
            groups.remove(inside.pop(length % len(inside)))
    groups.arrived([])
    settled = _lengths(groups)
    groups.arrived([])
    assert settled == _lengths(groups)
    assert sorted(itertools.chain(*settled)) == sorted(each.known_tokens for each in inside)
    longest = max(settled, key=lambda group: times.time(len(group), sum(group)))
    shortest = min(settled, key=lambda group: times.time(len(group), sum(group)))
    before = times.time(len(longest), sum(longest))
    if times.is_longer(before, times.time(len(shortest), sum(shortest))):
        for length in longest:
            left = times.time(len(longest) - 1, sum(longest) - length)
            grown = times.time(len(shortest) + 1, sum(shortest) + length)
            assert max(left, grown) >= before
