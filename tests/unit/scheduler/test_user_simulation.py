"""Users with limits on simulated stages: preempted, cancelled, with several outputs."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from scheduler.engine_config import EngineConfig
from tests.simulated_mesh import SimulatedMesh
from tests.simulated_stage import PAGE_TOKENS
from tests.specs import make_spec

_MOST_RUNNING = 3
_CONFIG = EngineConfig(
    page_tokens=PAGE_TOKENS,
    chunked_prefill_tokens=16,
    max_running_requests=8,
    max_queued_requests=12,
    max_running_requests_per_user=_MOST_RUNNING,
    load_timeout_s=0.2,
    max_outstanding_stores=4,
    enable_prefix_caching=True,
)


def _check_users(mesh: SimulatedMesh) -> None:
    """Check that no user has more rows than it may, and that the counts say so."""
    live = mesh.engine._live
    rows = Counter[str]()
    for request_id in live.request_ids():
        for output in live.of(request_id):
            rows[output.spec.user] += len(output.rows)
    shares = mesh.engine._dispatch.door.shares
    for user, num_rows in rows.items():
        assert num_rows <= shares.of(user).num_running <= _MOST_RUNNING


def _step(mesh: SimulatedMesh, rng: random.Random, num_steps: int) -> bool:
    """Do so many of the things that can happen next; return whether there were that many."""
    for _ in range(num_steps):
        if not (moves := mesh.moves()):
            return False
        rng.choice(moves)()
        _check_users(mesh)
    return True


@pytest.mark.parametrize("seed", range(6))
def test_users_keep_their_limits_and_get_their_answers(seed: int) -> None:
    """Every answer is right, nobody is over its limit at any time, and nothing is remembered."""
    rng = random.Random(seed)  # noqa: S311 -- a seeded test
    mesh = SimulatedMesh(_CONFIG, num_stages=rng.randint(1, 3), num_pages=15)
    for index in range(60):
        mesh.arrive(
            make_spec(
                f"r{index}",
                np.arange(rng.randint(1, 16), dtype=np.uint32) % 11,
                max_new_tokens=rng.randint(1, 20),
                page_tokens=PAGE_TOKENS,
                num_outputs=rng.choice((1, 1, 2, 3)),
                user=rng.choice(("a", "a", "a", "b", "c")),
                priority=rng.choice((0, 0, 1)),
            )
        )
        _step(mesh, rng, rng.randint(0, 60))
        if rng.random() < 0.2:
            mesh.cancel(f"r{rng.randint(0, index)}")
    while _step(mesh, rng, 1000):
        pass
    mesh.check_end()
    door = mesh.engine._dispatch.door
    assert ({}, set(), set()) == (door.shares._shares, door.shares._waiting, door.shares._running)
    assert not any(clock.ends for clock in door._turns._clocks.values())
    ends = mesh.clients.finished.values()
    assert any(end.num_preemptions for end in ends)
    assert {"a", "b", "c"} == {mesh.clients.specs[end.request_id].user for end in ends}
