"""Loads: minimum over the stages, deadlines, late answers."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvariantViolated
from scheduler.actions import SendEndLoad
from scheduler.events import Loaded
from scheduler.loads import GRACE_S, HARD_CAP_S, Load, Loads
from scheduler.request import Request
from tests.specs import make_spec

_REQUEST = Request(spec=make_spec("a", 200))


def _answer(
    loads: Loads,
    stage: int,
    load_id: int,
    num_pages: int,
    *,
    at_s: float = 0.0,
    is_damaged: bool = False,
) -> Load | None:
    """Let one stage answer."""
    event = Loaded(
        epoch=1, stage=stage, load_id=load_id, num_pages=num_pages, is_damaged=is_damaged
    )
    return loads.loaded(event, at_s)


def _started(pages: range, timeout_s: float | None = 1.0) -> tuple[Loads, Load]:
    """Return the loads of two stages with one load begun at 0."""
    loads = Loads(num_stages=2, epoch=1)
    loads.start(_REQUEST, pages, timeout_s=timeout_s, now_s=0.0)
    load = loads.find(_REQUEST)
    assert load is not None
    return loads, load


def test_pages_behind_others_are_asked_for() -> None:
    """What the devices have is not loaded; the stages know the time limit."""
    order = Loads(num_stages=2, epoch=1).start(_REQUEST, range(3, 7), timeout_s=0.25, now_s=0.0)
    assert order.digests == _REQUEST.spec.digests[3:7]
    assert order.timeout_ms == 250


def test_each_load_has_its_deadline() -> None:
    """Only what is late is given up, and only when the stages' own limit is long over."""
    loads = Loads(num_stages=2, epoch=1)
    late = Request(spec=make_spec("b", 200))
    loads.start(_REQUEST, range(3), timeout_s=1.0, now_s=0.0)
    loads.start(late, range(4), timeout_s=1.0, now_s=0.5)
    _answer(loads, 0, 0, 3)
    assert loads.expire(0.9 + GRACE_S) == []
    (given_up,) = loads.expire(1.2 + GRACE_S)
    assert (given_up.request, given_up.num_usable, given_up.is_late) == (_REQUEST, 0, True)
    assert _answer(loads, 1, 0, 3) is None
    loads.close(given_up)
    _answer(loads, 0, 1, 4)
    ended = _answer(loads, 1, 1, 2)
    assert ended is loads.find(late)
    assert ended is not None
    assert (ended.expected, ended.outcome, ended.is_late) == (range(2), "partial", False)
    loads.close(ended)
    assert len(loads) == 0


def test_second_answer_of_a_stage_does_not_stand_for_another() -> None:
    """Two answers of stage 0 are not one of each stage."""
    loads, load = _started(range(3))
    assert _answer(loads, 0, 0, 3) is None
    assert _answer(loads, 0, 0, 2) is None
    assert _answer(loads, 1, 0, 3) is load
    assert load.num_usable == 3
    assert load.outcome == "complete"


def test_a_stage_without_pages_ends_it() -> None:
    """The others may read on for seconds, for nothing."""
    loads, load = _started(range(3))
    assert _answer(loads, 1, 0, 0, is_damaged=True) is load
    assert (load.num_usable, load.outcome, load.is_damaged) == (0, "empty", True)


def test_what_it_brought_waits_for_its_request() -> None:
    """A load that is over is not given up, however long its request waits for its turn."""
    loads, load = _started(range(2, 6))
    _answer(loads, 0, 0, 4)
    _answer(loads, 1, 0, 3)
    assert loads.expire(1e9) == []
    assert load.expected == range(2, 5)


def test_without_a_limit_there_is_a_cap() -> None:
    """A worker that lives and never answers must not hold a request for ever."""
    loads, load = _started(range(3), timeout_s=None)
    assert loads.expire(HARD_CAP_S - 1) == []
    assert loads.expire(HARD_CAP_S) == [load]


def test_the_stages_are_told_once_to_end_it() -> None:
    """Then they have little time to answer; what has been answered needs no end."""
    loads, load = _started(range(3), timeout_s=None)
    assert loads.end(load, 5.0) == [SendEndLoad(epoch=1, load_id=0)]
    assert loads.end(load, 6.0) == []
    assert loads.expire(5.0 + GRACE_S) == [load]
    assert loads.end(load, 7.0) == []


def test_the_time_limit_is_told_from_what_was_complete() -> None:
    """An answer at the limit is counted as one that was cut."""
    loads, load = _started(range(3))
    _answer(loads, 0, 0, 3, at_s=0.5)
    _answer(loads, 1, 0, 1, at_s=1.0)
    assert load.is_late


def test_host_pages_are_told_from_those_of_redis() -> None:
    """Only what no stage has read from Redis came from host memory."""
    loads, load = _started(range(4))
    for stage, num_pages, num_host_pages in ((0, 4, 3), (1, 2, 2)):
        event = Loaded(
            epoch=1, stage=stage, load_id=0, num_pages=num_pages, num_host_pages=num_host_pages
        )
        loads.loaded(event, 0.0)
    assert (load.num_usable, load.num_host_pages) == (2, 2)


def test_nonsense_is_refused() -> None:
    """It can only come from a bug."""
    loads, _ = _started(range(3))
    with pytest.raises(InvariantViolated, match="never sent"):
        _answer(loads, 0, 1, 1)
    with pytest.raises(InvariantViolated, match="4 pages of load 0, 3 were asked"):
        _answer(loads, 0, 0, 4)
