"""Users of one priority share the mesh in tokens, and each has limits of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from chunkmesh.errors import ChunkMeshError, InvalidRequest, Overloaded
from scheduler.admission import Admission
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.fair_door import FairDoor
from scheduler.fair_turns import FairTurns, cost_tokens
from scheduler.request import Request, RequestState
from scheduler.setbacks import Setbacks
from tests.specs import make_spec

_ROOM = 8
"""Tokens asked for by most of these requests: 7 of the prompt and one of output."""


class Door:
    """The fair door before one queue, and the outputs that it has let run."""

    def __init__(self, **limits: int) -> None:
        config: dict[str, Any] = {
            "page_tokens": 16,
            "chunked_prefill_tokens": 64,
            "max_running_requests": 8,
            "max_queued_requests": 20_000,
            "load_timeout_s": 1.0,
            "max_outstanding_stores": 0,
        }
        self._queue = Admission()
        self.fair = FairDoor(EngineConfig(**(config | limits)), self._queue.of)
        self.pushed_out: list[str] = []
        self._ids: Iterator[int] = itertools.count()

    def spec(self, user: str, prompt: int = 7, **more: Any) -> RequestSpec:
        """Return a request of a user."""
        return make_spec(f"{user}{next(self._ids)}", prompt, user=user, **more)

    def ask(self, user: str, prompt: int = 7, **more: Any) -> ChunkMeshError | None:
        """Let a user ask as the engine lets it; return why it was refused, if so."""
        spec = self.spec(user, prompt, **more)
        if (error := self.fair.refusal(spec, num_pages=10_000)) is not None:
            return error
        if (leaver := self.fair.makes_room(spec)) is not None:
            (last,) = [each for each in self._queue if each.request_id == leaver[0]]
            self.pushed_out.append(last.request_id)
            self.end(last)
        turn, arrival = self.fair.take_turn(spec), next(self._ids)
        self.wait(Request(spec=spec, arrival=arrival, turn=turn, state=RequestState.QUEUED))
        return None

    def wait(self, request: Request) -> None:
        """Let an output wait."""
        self.fair.waits(request)
        self._queue.add(request)

    def end(self, request: Request) -> None:
        """End an output, waiting or running."""
        self._queue.remove(request)
        self.fair.gone(request)

    def waiting(self, user: str) -> list[Request]:
        """Return who waits of a user."""
        return list(self._queue.of(user))

    def next(self) -> Request | None:
        """Take out who is next where everybody has a place."""
        request = self._queue.take_next(lambda _request: True, self.fair.shares.may_run)
        if request is not None:
            self.fair.admitted(request)
        return request

    def order(self) -> str:
        """Take everybody out; return their users."""
        return "".join(each.spec.user for each in iter(self.next, None))


def test_a_flood_delays_another_users_request_by_one_of_its_own() -> None:
    """10,000 requests are 10,000 turns of one user; the single one of another is next but one."""
    door = Door()
    for _ in range(10_000):
        assert door.ask("a") is None
    for _ in range(100):
        assert door.next() is not None
    assert door.ask("b") is None
    assert door.order()[:3].index("b") <= 1


def test_shares_are_of_tokens_not_of_requests() -> None:
    """Who asks for ten times as much at a time is served a tenth as often."""
    door = Door()
    for _ in range(100):
        door.ask("a", 99, max_new_tokens=1)
    for _ in range(1000):
        door.ask("b", 9, max_new_tokens=1)
    served = door.order()[:550]
    assert 50 == pytest.approx(served.count("a"), abs=2)


def test_output_and_outputs_are_charged() -> None:
    """Else a user with short prompts could ask for any length of answers."""
    assert 10 + 3 * 5 == cost_tokens(make_spec("r", 10, max_new_tokens=5, num_outputs=3))


@pytest.mark.parametrize("num_users", [2, 3, 10])
def test_equal_users_get_equal_shares_at_every_moment(num_users: int) -> None:
    """Start-time fair queueing: no two who wait are ever further apart than one request each."""
    door = Door()
    users = "abcdefghij"[:num_users]
    for user in users:
        for _ in range(50):
            door.ask(user)
    served = door.order()
    for end in range(len(served)):
        counts = [served[:end].count(user) for user in users]
        assert max(counts) - min(counts) <= 1


def test_nobody_starves_behind_those_who_keep_asking() -> None:
    """Its turn is given once; only so many others can begin before that."""
    door = Door()
    for _ in range(10):
        door.ask("a")
    door.ask("b", 500, max_new_tokens=500)
    for _ in range(10):
        served = door.next()
        assert served is not None
        if served.spec.user == "b":
            return
        door.ask("a")
    pytest.fail("b was never served")


def test_what_was_used_while_nobody_waited_is_not_held_against_a_user() -> None:
    """Work-conserving: what was free then is no debt now."""
    door = Door()
    for _ in range(100):
        door.ask("a")
        door.next()
    for user in "abab":
        door.ask(user)
    assert "abab" == door.order()


def test_one_user_is_served_in_the_order_of_arrival() -> None:
    """With one user nothing is other than without fairness."""
    door = Door()
    for prompt in (500, 3, 70, 1):
        door.ask("a", prompt)
    lengths = [each.prompt_tokens for each in iter(door.next, None)]
    assert [500, 3, 70, 1] == lengths


def test_who_was_preempted_is_served_before_the_others_new_ones() -> None:
    """It was charged when it was served first; its client is in the midst of its answer."""
    door = Door()
    for user in "abab":
        door.ask(user)
    first = door.next()
    assert first is not None
    first.setbacks = Setbacks(num_preemptions=1)
    door.wait(first)
    assert door.next() is first


def test_priorities_have_clocks_of_their_own() -> None:
    """What a user asked for at one priority must not delay it at another."""
    door = Door()
    for _ in range(5):
        door.ask("a", 1000)
    door.ask("b", priority=2)
    door.ask("a", priority=2)
    assert "baaaaaa" == door.order()


def test_clocks_forget_users_when_nobody_waits() -> None:
    """Users come and go for months."""
    turns = FairTurns()
    for index in range(1000):
        turns.take(make_spec("r", 8, user=f"u{index}"))
        turns.rest()
    assert all(not clock.ends for clock in turns._clocks.values())


def test_clocks_forget_users_whom_time_has_passed() -> None:
    """Where somebody always waits, users who came once must not be remembered for ever."""
    turns = FairTurns()
    ahead = turns.take(make_spec("r", 4, max_new_tokens=1_000_000, user="ahead"))
    for index in range(2000):
        turn = turns.take(make_spec("r", 4, max_new_tokens=4, user=f"user {index}"))
        turns.served(0, turn + 8)
    assert len(turns._clocks[0].ends) < 150
    again = turns.take(make_spec("r", 4, max_new_tokens=4, user="ahead"))
    assert again == ahead + 1_000_004, "who is ahead of time stays so"


def test_a_full_queue_makes_room_for_who_has_less_in_it() -> None:
    """Else a flood would keep others out at the door, however fair the queue is."""
    door = Door(max_queued_requests=6)
    assert [None] * 6 == [door.ask("a") for _ in range(6)]
    refused = door.ask("a")
    assert isinstance(refused, Overloaded)
    assert [None] * 3 == [door.ask("b") for _ in range(3)]
    assert ["a10", "a8", "a6"] == door.pushed_out
    assert isinstance(door.ask("b"), Overloaded)
    assert isinstance(door.ask("a"), Overloaded)
    assert "aabb" == "".join(sorted(door.order()[:4]))


def test_who_is_in_the_midst_of_an_answer_is_not_pushed_out() -> None:
    """Those were preempted, and their clients have text already."""
    door = Door(max_queued_requests=2)
    for _ in range(2):
        spec = door.spec("a")
        running = Request(
            spec=spec, state=RequestState.QUEUED, setbacks=Setbacks(num_preemptions=1)
        )
        door.wait(running)
    assert isinstance(door.ask("b"), Overloaded)


@pytest.mark.parametrize(
    ("limits", "flag"),
    [
        ({"max_queued_requests_per_user": 2}, "--max-queued-requests-per-user"),
        ({"max_queued_tokens_per_user": 14}, "--max-queued-tokens-per-user"),
    ],
)
def test_limits_of_one_user_leave_others_alone(limits: dict[str, int], flag: str) -> None:
    """The refusal names the limit and when to come again; whoever is within its own may wait."""
    door = Door(**limits)
    assert [None, None] == [door.ask("a"), door.ask("a")]
    refused = door.ask("a")
    assert isinstance(refused, Overloaded)
    assert (1.0, True) == (refused.retry_after_s, flag in str(refused))
    assert door.ask("b") is None
    assert door.next() is not None
    assert door.ask("a") is None


def test_queued_tokens_are_bounded_for_all_together() -> None:
    """Admission by tokens: a million waiting tokens are a million, however few requests.

    A flood of tokens does not keep out who has nothing waiting.
    """
    door = Door(max_queued_tokens=100)
    assert [None, None, None] == [door.ask(user, 50) for user in "abc"]
    refused = door.ask("b", 1)
    assert isinstance(refused, Overloaded)
    assert "the limit is 100 (--max-queued-tokens)" in str(refused)


def test_one_prompt_may_be_longer_than_the_limit_of_waiting_tokens() -> None:
    """Else it could never run, however idle the mesh is."""
    door = Door(max_queued_tokens=10, max_queued_tokens_per_user=10)
    assert door.ask("a", 1000) is None
    assert isinstance(door.ask("a", 1), Overloaded)


def test_running_limit_holds_one_user_back_and_nobody_else() -> None:
    """Its requests wait in their order, and go on as its own ones end."""
    door = Door(max_running_requests_per_user=2)
    for _ in range(4):
        door.ask("a")
    door.ask("b")
    taken = [door.next() for _ in range(4)]
    assert ["a", "b", "a", None] == [each and each.spec.user for each in taken]
    assert taken[0] is not None
    door.end(taken[0])
    last = door.next()
    assert last is not None
    assert ("a", None) == (last.spec.user, door.next())


def test_running_limit_holds_also_behind_one_whose_match_is_pending() -> None:
    """Whoever comes behind it may need more rows than it, and waits for its own turn."""
    door = Door(max_running_requests_per_user=3)
    for _ in range(2):
        door.ask("a")
        assert door.next() is not None
    pending = Request(spec=door.spec("a"), turn=0)
    door.wait(pending)
    door.ask("a", num_outputs=2)
    door.ask("a")
    assert door.next() is None
    pending.move(RequestState.QUEUED)
    assert door.next() is pending


def test_outputs_count_as_running_one_by_one() -> None:
    """Three outputs of a prompt take three rows; each gives its own back."""
    door = Door(max_running_requests_per_user=3)
    door.ask("a", num_outputs=3)
    door.ask("a")
    first = door.next()
    assert first is not None
    assert door.next() is None
    others = [Request(spec=first.spec, child=child, output_ids=[1]) for child in (1, 2)]
    first.output_ids.append(1)
    door.end(others[0])
    assert door.next() is not None
    for each in (first, others[1]):
        door.end(each)
    assert 1 == door.fair.shares.of("a").num_running


def test_more_outputs_than_a_user_may_run_are_refused() -> None:
    """They could never be admitted, and would stand before all others of their user."""
    refused = Door(max_running_requests_per_user=2).ask("a", num_outputs=3)
    assert isinstance(refused, InvalidRequest)
    assert "sampling_params.n" == refused.field


def test_nothing_is_remembered_of_users_who_have_nothing() -> None:
    """Preempted, refused, ended in the queue or while running: counts come back to nothing."""
    door = Door()
    for user in "abc":
        door.ask(user, num_outputs=2)
    a, b = door.next(), door.next()
    assert a is not None
    assert b is not None
    door.wait(b)
    waiting = [each for user in "bc" for each in door.waiting(user)]
    for request in (a, *waiting):
        door.end(request)
    shares = door.fair.shares
    assert ({}, set(), set()) == (shares._shares, shares._waiting, shares._running)
    assert (0, 0, 0) == (
        shares.all.num_waiting,
        shares.all.waiting_tokens,
        shares.all.num_running,
    )
