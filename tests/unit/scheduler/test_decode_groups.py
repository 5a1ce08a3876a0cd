"""DecodeGroups: sizes stay equal, steps wait for results, movers are not in flight."""

from __future__ import annotations

from scheduler.decode_groups import DecodeGroups
from scheduler.request import Request
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
