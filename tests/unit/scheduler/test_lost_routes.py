"""Routes that come and go under the engine, in every order: no answer may differ for it."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from scheduler.engine_config import EngineConfig, LoadPolicy, WritePolicy
from scheduler.events import LossCause
from scheduler.request import RequestState
from tests.simulated_mesh import SimulatedMesh, run
from tests.simulated_stage import PAGE_TOKENS
from tests.specs import GREEDY, make_spec

_SAMPLINGS = (
    GREEDY,
    dataclasses.replace(GREEDY, presence_penalty=0.5),
    dataclasses.replace(GREEDY, repetition_penalty=1.5, top_logprobs=2),
)


@dataclasses.dataclass(slots=True)
class _Soak:
    """One mesh under losses, and what they met."""

    mesh: SimulatedMesh
    rng: random.Random
    met: Counter[str] = dataclasses.field(default_factory=Counter)

    def lose(self) -> None:
        """Lose a route and form another, of the same workers but for some, now or later."""
        mesh, rng = self.mesh, self.rng
        which = rng.randrange(len(mesh.routes))
        epoch = list(mesh.routes)[which]
        for request in mesh.engine._live.bound_to(epoch):
            self.met[request.state.value] += 1
            self.met["fork ahead"] += request.reserve is not None
            self.met["shares pages"] += request.state is RequestState.DECODE and request.child > 0
        cause: LossCause = rng.choice(("ended", "left"))
        mesh.lose(which, cause)
        mesh.await_route(100.0, is_announced=True)
        if len(mesh.routes) < 2 and rng.random() < 0.8:
            num_stages = len(mesh._spares)
            new_stages = {stage for stage in range(num_stages) if rng.random() < 0.3}
            mesh.form(new_stages=new_stages)


def _soak(
    seed: int, *, write_policy: WritePolicy = "write_through", num_host_pages: int = 0
) -> _Soak:
    """Serve 50 requests that share prefixes on up to two routes, which are lost all the time."""
    rng = random.Random(seed)  # noqa: S311 - a fixed order, not a secret
    config = EngineConfig(
        page_tokens=PAGE_TOKENS,
        chunked_prefill_tokens=16,
        max_running_requests=6,
        max_queued_requests=200,
        load_timeout_s=0.2,
        max_outstanding_stores=4,
        chunk_strategy="fixed",
        enable_prefix_caching=rng.random() < 0.7,
        load_policy=rng.choice(get_args(LoadPolicy)),
        write_policy=write_policy,
    )
    mesh = SimulatedMesh(
        config,
        num_stages=rng.randint(1, 4),
        num_pages=rng.choice((24, 40)),
        num_host_pages=num_host_pages,
    )
    soak = _Soak(mesh, rng)
    for index in range(50):
        spec = make_spec(
            f"r{index}",
            np.arange(rng.randint(1, 40), dtype=np.uint32) % 11 * rng.randint(1, 2),
            max_new_tokens=rng.randint(1, 12),
            page_tokens=PAGE_TOKENS,
            sampling=rng.choice(_SAMPLINGS),
            num_outputs=rng.choice((1, 1, 1, 2, 3)),
            prompt_top_logprobs=rng.choice((None, None, None, 1)),
        )
        mesh.arrive(spec)
        run(mesh, rng.randrange, num_moves=rng.randint(0, 120))
        if rng.random() < 0.1:
            mesh.cancel(f"r{rng.randint(0, index)}")
        if not mesh.routes or (len(mesh.routes) < 2 and rng.random() < 0.2):
            mesh.form(new_stages=set())
        elif rng.random() < 0.3:
            soak.lose()
    if not mesh.routes:
        mesh.form()
    assert not run(mesh, rng.randrange, num_moves=100_000)
    mesh.check_end()
    return soak


@pytest.mark.parametrize(
    ("write_policy", "num_host_pages"),
    [("write_through", 0), ("write_through", 24), ("write_back", 24)],
)
def test_nothing_is_lost_with_a_route(write_policy: WritePolicy, num_host_pages: int) -> None:
    """Every output ends once, with the tokens it would have had; losses meet it in every state."""
    soaks = [
        _soak(seed, write_policy=write_policy, num_host_pages=num_host_pages) for seed in range(7)
    ]
    ends = [end for soak in soaks for end in soak.mesh.clients.finished.values()]
    failed = [each for soak in soaks for each in soak.mesh.clients.failed.values()]
    assert all("recoveries in a row" in str(each.error) for each in failed)
    assert len(failed) < 4
    assert sum(end.num_recoveries > 0 for end in ends) > 100
    assert sum(end.num_recoveries > 1 for end in ends) > 20
    assert sum(end.num_recoveries > 0 and end.child > 0 for end in ends) > 30
    met = sum((soak.met for soak in soaks), Counter[str]())
    wanted = ("waiting", "queued", "loading", "prefill", "decode", "fork ahead", "shares pages")
    assert min(met[each] for each in wanted) > 1, met
    counts = [soak.mesh.engine.snapshot().recoveries for soak in soaks]
    recovered = sum(end.num_recoveries for end in ends if not end.child)
    assert sum(count.outputs for count in counts) >= recovered
    took_s = [s for soak in soaks for s in soak.mesh.engine.recoveries.take_seconds()]
    assert 0 < len(took_s) <= sum(sum(count.routes.values()) for count in counts)
