"""Elections under any order of failures: nobody obeys two leaders, and in the end there is one."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.leadership import LET_GO_S, LOOK_S, TTL_S
from tests.simulated_election import PlayedMesh

NUM_SCHEDULERS = 3
WHO = st.integers(0, NUM_SCHEDULERS - 1)
SECONDS = st.sampled_from([0.1, 0.2, 0.5, 1.0, 3.0, 7.0])
EVENTS = st.one_of(
    st.tuples(st.just("run"), SECONDS),
    st.tuples(st.just("jump"), SECONDS),
    st.tuples(st.sampled_from(["sleep", "sleep late", "wake", "cut off", "reach", "restart"]), WHO),
    st.tuples(st.sampled_from(["redis down", "redis up", "flush"]), st.just(0)),
    st.tuples(st.just("lose worker"), st.integers(0, 3)),
)


def happen(mesh: PlayedMesh, kind: str, value: float) -> None:
    """Let one thing happen, and a moment pass."""
    scheduler = mesh.schedulers[int(value) % NUM_SCHEDULERS]
    match kind:
        case "jump":
            mesh.now_s += value
        case "sleep" | "wake":
            scheduler.is_asleep = kind == "sleep"
        case "sleep late":
            scheduler.sleeps_before_answer = True
        case "cut off" | "reach":
            scheduler.is_cut_off = kind == "cut off"
        case "restart":
            mesh.restart(int(value))
        case "redis down" | "redis up":
            mesh.redis.is_up = kind == "redis up"
        case "flush":
            mesh.redis.flush()
        case "lose worker":
            mesh.workers[int(value)].scheduler = None
    mesh.run(value if kind == "run" else 0.1)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=25))
@example([("flush", 0), ("restart", 0), ("restart", 1), ("restart", 2)])
@example([("sleep late", 0), ("run", 7.0), ("flush", 0), ("wake", 0)])
def test_workers_follow_one_leader_at_a_time_and_never_back(
    events: list[tuple[str, float]],
) -> None:
    """Each epoch that a worker obeys is one scheduler's, and above all before; then all heals."""
    mesh = PlayedMesh(NUM_SCHEDULERS, 4)
    mesh.run(1.0)
    for kind, value in events:
        happen(mesh, kind, value)
    mesh.redis.is_up = True
    for scheduler in mesh.schedulers:
        scheduler.is_asleep = scheduler.is_cut_off = scheduler.sleeps_before_answer = False
    mesh.run(4 * TTL_S)
    for worker in mesh.workers:
        epochs = [epoch for epoch, _ in worker.obeyed]
        assert sorted(set(epochs)) == epochs
    (leader,) = mesh.leaders()
    assert [leader] * 4 == [worker.scheduler for worker in mesh.workers]
    assert mesh.redis.holder is not None
    assert leader.name == mesh.redis.holder.name


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 12.0)), max_size=6), st.booleans())
def test_redis_may_go_and_come_back_empty(
    outages: list[tuple[bool, float]], others_first: bool
) -> None:
    """As long as everybody is awake the leader stays the leader, and nobody loses a request."""
    mesh = PlayedMesh(NUM_SCHEDULERS, 2)
    mesh.run(2.0)
    (leader,) = mesh.leaders()
    if others_first:
        mesh.schedulers.reverse()
    for is_flush, seconds in outages:
        mesh.redis.flush()
        if not is_flush:
            mesh.redis.is_up = False
            mesh.run(seconds)
            mesh.redis.is_up = True
        mesh.run(2.0)
    assert [leader] == mesh.leaders()
    assert 0 == leader.num_step_downs
    assert [1, 1] == [len(worker.obeyed) for worker in mesh.workers]


@settings(max_examples=50, deadline=None)
@given(st.floats(0.0, 2.0))
def test_a_leader_that_dies_is_followed_in_time(phase_s: float) -> None:
    """By the rules alone within the life of a lease and a look, wherever in its round it dies."""
    mesh = PlayedMesh(NUM_SCHEDULERS, 2)
    mesh.run(2.0 + phase_s)
    (leader,) = mesh.leaders()
    leader.is_asleep = True
    mesh.run(TTL_S + LOOK_S + 0.2)
    (heir,) = [each for each in mesh.leaders() if each is not leader]
    mesh.run(0.5)
    assert [heir, heir] == [worker.scheduler for worker in mesh.workers]
    leader.is_asleep = False
    mesh.run(LOOK_S + 0.2)
    assert [heir] == mesh.leaders()
    assert [heir, heir] == [worker.scheduler for worker in mesh.workers]


def test_workers_that_a_cut_has_split_find_together() -> None:
    """The old leader cannot know of the new one, but it knows that it has no route."""
    mesh = PlayedMesh(2, 2)
    mesh.run(2.0)
    (old,) = mesh.leaders()
    (heir,) = (each for each in mesh.schedulers if each is not old)
    old.is_cut_off = True
    mesh.run(2 * TTL_S)
    assert [old, old] == [worker.scheduler for worker in mesh.workers]
    mesh.workers[0].lose(old)
    old.streams.discard(mesh.workers[0])
    mesh.run(LET_GO_S + 2 * TTL_S)
    assert [heir, heir] == [worker.scheduler for worker in mesh.workers]
