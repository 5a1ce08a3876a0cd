"""Who is next among users: in the order of turns, whoever is held back, against a sorted list."""

from __future__ import annotations

import random

from scheduler.fair_queue import FairQueue
from scheduler.request import Request
from tests.specs import make_spec


def waiting(user: str, turn: int, *, arrival: int = 0, priority: int = 0) -> Request:
    """Return an output that waits."""
    spec = make_spec(f"{user}{arrival}", 8, user=user, priority=priority)
    return Request(spec=spec, arrival=arrival, turn=turn)


def place(request: Request) -> tuple[int, int, int, int]:
    """Return what the queue is ordered by."""
    return -request.spec.priority, request.turn, request.arrival, request.child


def test_priority_then_turn_then_age() -> None:
    """Turns are only among equals, and equal turns go to the older one."""
    queue = FairQueue()
    order = [
        waiting("b", 90, arrival=5, priority=3),
        waiting("a", 10, arrival=4),
        waiting("b", 10, arrival=7),
        waiting("a", 20, arrival=1),
    ]
    for request in reversed(order):
        queue.add(request)
    assert order == list(queue.in_order())


def test_who_is_held_back_keeps_its_place() -> None:
    """Its whole queue is passed, whatever waits behind its first one."""
    queue = FairQueue()
    a, b, c = waiting("a", 1), waiting("b", 2), waiting("a", 3, arrival=1)
    for request in (a, b, c):
        queue.add(request)
    assert [b] == list(queue.in_order(lambda first: first is not a))
    assert (3, {"a": [a, c], "b": [b]}) == (len(queue), queue.of_users())
    assert queue.remove(a)
    assert [b, c] == list(queue.in_order(lambda first: first is not a))


def test_only_members_are_taken_out() -> None:
    """A running output ends without a place in the queue; another of the same place stays."""
    queue = FairQueue()
    member, twin = waiting("a", 1), waiting("a", 1)
    queue.add(member)
    assert [False, False, True, False] == [
        queue.remove(each) for each in (twin, waiting("b", 1), member, member)
    ]
    assert (0, {}) == (len(queue), queue.of_users())


def test_random_moves_against_a_sorted_list() -> None:
    """Heads are moved at every change; one that is lost would starve its user."""
    chance = random.Random(5)  # noqa: S311 -- a seeded test
    queue, members = FairQueue(), list[Request]()
    for arrival in range(2000):
        user = chance.choice("abcdef")
        match chance.randrange(4):
            case 0 | 1:
                turn, priority = chance.randrange(50), chance.randrange(3)
                members.append(waiting(user, turn, arrival=arrival, priority=priority))
                queue.add(members[-1])
            case 2 if members:
                assert queue.remove(members.pop(chance.randrange(len(members))))
        held = set(chance.sample("abcdef", chance.randrange(4)))
        free = [each for each in members if each.spec.user not in held]
        in_order = queue.in_order(lambda first, held=held: first.spec.user not in held)  # type: ignore[misc]
        assert sorted(free, key=place) == list(in_order)
        assert len(members) == len(queue)
