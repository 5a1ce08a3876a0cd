"""The engine in front of simulated stages that answer in every order that real ones could."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from scheduler.engine_config import (
    CHUNK_STRATEGIES,
    ChunkStrategyName,
    EngineConfig,
    LoadPolicy,
    WritePolicy,
)
from scheduler.events import LossCause, Sampling
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.recoveries import LOSS_CAUSES
from tests.simulated_mesh import NUM_PAGES, SimulatedMesh, run
from tests.simulated_stage import PAGE_TOKENS
from tests.specs import GREEDY, make_spec

END_IDS = frozenset({5, 6})
SAMPLINGS = (
    GREEDY,
    dataclasses.replace(GREEDY, presence_penalty=0.5),
    dataclasses.replace(GREEDY, repetition_penalty=1.5, top_logprobs=2),
)


class EngineMachine(RuleBasedStateMachine):
    """Arrivals, cancels, faults of the cache and of routes, and any order of everything else."""

    @initialize(
        num_stages=st.integers(1, 4),
        depth=st.integers(-3, 2),
        max_running=st.integers(1, 6),
        max_stores=st.integers(0, 3),
        groups=st.sampled_from((None, 1, 2)),
        num_pages=st.sampled_from((NUM_PAGES, NUM_PAGES, 12, 20)),
        strategy=st.sampled_from(CHUNK_STRATEGIES),
        seed=st.none() | st.integers(0, 1000),
        max_requests=st.sampled_from((None, None, 1, 3)),
        device_cache=st.sampled_from((True, True, False)),
        load_policy=st.sampled_from(get_args(LoadPolicy)),
        num_host_pages=st.sampled_from((0, 8, 24, 200)),
        write_policy=st.sampled_from(get_args(WritePolicy)),
        deadline_floor_s=st.sampled_from((None, 0.0)),
    )
    def start(
        self,
        num_stages: int,
        depth: int,
        max_running: int,
        max_stores: int,
        groups: int | None,
        num_pages: int,
        strategy: ChunkStrategyName,
        seed: int | None,
        max_requests: int | None,
        *,
        device_cache: bool,
        load_policy: LoadPolicy,
        num_host_pages: int,
        write_policy: WritePolicy,
        deadline_floor_s: float | None,
    ) -> None:
        """Form a mesh; without a seed it has no latency."""
        config = EngineConfig(
            page_tokens=PAGE_TOKENS,
            chunked_prefill_tokens=16,
            max_running_requests=max_running,
            max_queued_requests=8,
            load_timeout_s=1.0,
            max_outstanding_stores=max_stores,
            pp_async_batch_depth=depth,
            decode_groups=groups,
            chunk_strategy=strategy,
            max_microbatch_requests=max_requests,
            max_chunk_ms=None if seed is None or seed % 2 else 2.0,
            enable_prefix_caching=device_cache,
            load_policy=load_policy,
            write_policy=write_policy,
            stage_deadline_floor_s=deadline_floor_s,
        )
        latency = None if seed is None else _latency(random.Random(seed), num_stages)  # noqa: S311 - a fixed order, not a secret
        self.mesh = SimulatedMesh(
            config,
            num_stages=num_stages,
            num_pages=num_pages,
            num_host_pages=num_host_pages,
            latency=latency,
        )

    @rule(
        prompt_tokens=st.integers(1, 70) | st.integers(1, 12),
        family=st.integers(1, 2),
        max_new_tokens=st.integers(1, 12),
        min_new_tokens=st.integers(0, 3),
        namespace=st.sampled_from((b"a" * 32, b"a" * 32, b"b" * 32)),
        num_outputs=st.sampled_from((1, 1, 2, 3)),
        sampling=st.sampled_from(SAMPLINGS),
        prompt_top_logprobs=st.sampled_from((None, None, None, 0, 2)),
        priority=st.sampled_from((0, 0, 0, 1, -5)),
    )
    def arrive(
        self,
        prompt_tokens: int,
        family: int,
        max_new_tokens: int,
        min_new_tokens: int,
        namespace: bytes,
        num_outputs: int,
        sampling: Sampling,
        prompt_top_logprobs: int | None,
        priority: int,
    ) -> None:
        """Let a request arrive; prompts of a family share their beginning."""
        spec = make_spec(
            f"r{len(self.mesh.clients.specs)}",
            np.arange(prompt_tokens, dtype=np.uint32) % 11 * family,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min(min_new_tokens, max_new_tokens),
            end_ids=END_IDS,
            page_tokens=PAGE_TOKENS,
            namespace=namespace,
            num_outputs=num_outputs,
            sampling=sampling,
            prompt_top_logprobs=prompt_top_logprobs,
            priority=priority,
        )
        self.mesh.arrive(spec)

    @rule(which=st.integers(0, 40))
    def cancel(self, which: int) -> None:
        """Cancel a request, perhaps one that has ended or never was."""
        self.mesh.cancel(f"r{which % (len(self.mesh.clients.specs) + 1)}")

    @rule(rng=st.randoms(use_true_random=False), num_moves=st.integers(1, 60))
    def go_on(self, rng: random.Random, num_moves: int) -> None:
        """Let the mesh make some moves."""
        run(self.mesh, rng.randrange, num_moves=num_moves)

    @rule(rng=st.randoms(use_true_random=False))
    def settle(self, rng: random.Random) -> None:
        """Let everything end, so that what comes next can hit what was stored."""
        if not self.mesh.routes:
            self.mesh.form()
        assert not run(self.mesh, rng.randrange, num_moves=100_000)
        self.mesh.check_end()

    @rule()
    def drain(self) -> None:
        """Let the scheduler begin to write back, whatever goes on."""
        self.mesh.drain()

    @rule()
    def evict(self) -> None:
        """Let Redis lose a page."""
        self.mesh.evict()

    @rule()
    def clear(self) -> None:
        """Let HiCache and Redis forget everything."""
        self.mesh.clear()

    @rule(seconds=st.floats(0, 1.5))
    def wait(self, seconds: float) -> None:
        """Let loads run into their deadline."""
        self.mesh.wait(seconds)

    @rule(which=st.integers(0, 2), cause=st.sampled_from(LOSS_CAUSES))
    def lose(self, which: int, cause: LossCause) -> None:
        """Lose one of the routes."""
        self.mesh.lose(which, cause)

    @rule(new_stages=st.none() | st.sets(st.integers(0, 3)))
    def form(self, new_stages: set[int] | None) -> None:
        """Form one more route, perhaps of workers that hold something."""
        if len(self.mesh.routes) < 3:
            self.mesh.form(new_stages=new_stages)

    @rule(which=st.integers(0, 2), new_stages=st.sets(st.integers(0, 3)))
    def replace(self, which: int, new_stages: set[int]) -> None:
        """Lose a route and form it anew at once, of the same workers but for some."""
        self.mesh.lose(which)
        self.mesh.form(new_stages=new_stages)

    @rule(wait_s=st.floats(0, 2.5), is_announced=st.booleans())
    def await_route(self, wait_s: float, *, is_announced: bool) -> None:
        """Tell how long a route will be awaited."""
        self.mesh.await_route(wait_s, is_announced=is_announced)

    @rule()
    def flush(self) -> None:
        """Let the devices' pages be forgotten, whoever uses them."""
        self.mesh.flush()

    def teardown(self) -> None:
        """Let everything end without help: nothing may be stuck, lost, doubled or leaked."""
        if hasattr(self, "mesh"):
            self.settle(random.Random(0))  # noqa: S311 - a fixed order, not a secret


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _latency(rng: random.Random, num_stages: int) -> PipelineLatency:
    """Return stages whose terms may each be missing."""

    def term(most: float) -> float:
        return rng.choice((0.0, most, most * rng.random()))

    def stage() -> StageLatency:
        ms_per_token = term(1.0)
        return StageLatency(
            floor_ms=term(5.0),
            fixed_ms=term(2.0),
            ms_per_prefix_token=ms_per_token * term(0.5),
            ms_per_token=ms_per_token,
            ms_per_pair=term(0.02),
            ms_per_row=term(1.0),
            ms_per_row_token=term(0.01),
            edge_ms=term(1.0),
        )

    return PipelineLatency(tuple(stage() for _ in range(num_stages)))


def _soak(
    seed: int,
    *,
    num_pages: int = NUM_PAGES,
    most_prompt: int = 70,
    most_new: int = 12,
    strategy: ChunkStrategyName | None = None,
    device_cache: bool = True,
    num_host_pages: int = 0,
    write_policy: WritePolicy = "write_through",
) -> SimulatedMesh:
    """Serve 60 requests that share prefixes, cancelling some, on up to 4 stages.

    With a strategy they have priorities, and the stages a latency.
    """
    rng = random.Random(seed)  # noqa: S311 - a fixed order, not a secret
    config = EngineConfig(
        page_tokens=PAGE_TOKENS,
        chunked_prefill_tokens=16,
        max_running_requests=8,
        max_queued_requests=60,
        load_timeout_s=0.2,
        max_outstanding_stores=4,
        chunk_strategy=strategy or "fixed",
        enable_prefix_caching=device_cache,
        load_policy=rng.choice(get_args(LoadPolicy)),
        write_policy=write_policy,
    )
    num_stages = rng.randint(1, 4)
    latency = _latency(rng, num_stages) if strategy else None
    mesh = SimulatedMesh(
        config,
        num_stages=num_stages,
        num_pages=num_pages,
        num_host_pages=num_host_pages,
        latency=latency,
    )
    for index in range(60):
        spec = make_spec(
            f"r{index}",
            np.arange(rng.randint(1, most_prompt), dtype=np.uint32) % 11 * rng.randint(1, 2),
            max_new_tokens=rng.randint(1, most_new),
            page_tokens=PAGE_TOKENS,
            sampling=rng.choice(SAMPLINGS),
            num_outputs=rng.choice((1, 1, 1, 2)),
            prompt_top_logprobs=rng.choice((None, None, None, 1)),
            priority=rng.randint(-2, 2) if strategy else 0,
        )
        mesh.arrive(spec)
        run(mesh, rng.randrange, num_moves=rng.randint(0, 80))
        if rng.random() < 0.2:
            mesh.cancel(f"r{rng.randint(0, index)}")
        if rng.random() < 0.2:
            mesh.evict()
    assert not run(mesh, rng.randrange, num_moves=100_000)
    mesh.check_end()
    return mesh


def _counts(meshes: Sequence[SimulatedMesh]) -> Counter[str]:
    """Return what the caches of several meshes were good for together."""
    total: Counter[str] = Counter()
    for mesh in meshes:
        cache = mesh.engine.snapshot().cache
        total["evicted"] += cache.evicted_pages
        total["found"] += cache.device_hit_tokens
        total["host"] += cache.host_hit_tokens
        total["host evicted"] += cache.host_evicted_pages
        total["redis"] += cache.redis_hit_tokens
        total["in redis"] += len(mesh.redis)
        total.update(cache.loads)
    return total


@pytest.mark.parametrize("device_cache", [False, True])
def test_soak_reaches_what_it_is_for(*, device_cache: bool) -> None:
    """A simulation that never hits the cache or never cancels a running request proves nothing."""
    meshes = [_soak(seed, device_cache=device_cache) for seed in range(20)]
    ends = [end for mesh in meshes for end in mesh.clients.finished.values()]
    assert sum(len(mesh.clients.specs) for mesh in meshes) == 20 * 60
    assert not any(mesh.clients.failed for mesh in meshes)
    assert sum(end.cached_tokens > 0 for end in ends) > 200
    assert sum(end.reason == "abort" and bool(end.chunk_tokens) for end in ends) > 10
    assert sum(len(end.chunk_tokens) > 1 for end in ends) > 100
    assert sum(end.child > 0 for end in ends) > 200
    counts = _counts(meshes)
    assert (counts["found"] > 5000) == (counts["evicted"] > 1000) == device_cache
    assert min(counts[each] for each in ("complete", "partial", "empty", "dropped")) > 5


@pytest.mark.parametrize("device_cache", [False, True])
def test_soak_of_small_pools_reaches_what_it_is_for(*, device_cache: bool) -> None:
    """Preemption in every state, also of several outputs, must leave every output what it was."""
    meshes = [
        _soak(seed, num_pages=15, most_prompt=16, most_new=20, device_cache=device_cache)
        for seed in range(12)
    ]
    assert not any(mesh.clients.failed for mesh in meshes)
    ends = [end for mesh in meshes for end in mesh.clients.finished.values()]
    ends = [end for end in ends if end.reason != "abort"]
    assert sum(end.num_preemptions > 0 for end in ends) > 90
    assert sum(end.num_preemptions > 1 for end in ends) > 3
    assert sum(end.num_preemptions > 0 and end.child > 0 for end in ends) > 15
    total = sum(mesh.engine.snapshot().num_preemptions for mesh in meshes)
    assert total >= sum(end.num_preemptions > 0 for end in ends)
    assert (_counts(meshes)["evicted"] > 1000) == device_cache


@pytest.mark.parametrize("write_policy", get_args(WritePolicy))
@pytest.mark.parametrize("num_host_pages", [0, 24])
def test_soak_of_tiers_reaches_what_it_is_for(
    num_host_pages: int, write_policy: WritePolicy
) -> None:
    """Every tier is hit and evicts, whatever it takes in and when."""
    meshes = [
        _soak(
            seed,
            num_pages=20,
            most_prompt=50,
            num_host_pages=num_host_pages,
            write_policy=write_policy,
        )
        for seed in range(12)
    ]
    assert not any(mesh.clients.failed for mesh in meshes)
    counts = _counts(meshes)
    assert counts["evicted"] > 500
    assert (counts["host"] > 1000) == (counts["host evicted"] > 100) == bool(num_host_pages)
    assert counts["redis"] > 30
    for mesh in meshes:
        mesh.drain()
        assert not run(mesh, lambda _: 0, num_moves=10_000)
        mesh.check_end()
    assert (_counts(meshes)["in redis"] > counts["in redis"]) == (write_policy == "write_back")


@pytest.mark.parametrize("strategy", CHUNK_STRATEGIES)
def test_soak_with_a_latency_reaches_what_it_is_for(strategy: ChunkStrategyName) -> None:
    """Outputs are what they are without a model, whatever it says and however it is refitted."""
    sizes: list[dict[str, Any]] = [
        {"num_pages": NUM_PAGES},
        {"num_pages": 15, "most_prompt": 16, "most_new": 20},
    ]
    meshes = [_soak(seed, strategy=strategy, **sizes[seed % 2]) for seed in range(16)]
    assert not any(mesh.clients.failed for mesh in meshes)
    ends = [end for mesh in meshes for end in mesh.clients.finished.values()]
    assert sum(len(end.chunk_tokens) > 1 for end in ends) > 100
    assert sum(end.num_preemptions > 0 for end in ends) > 30
    assert sum(end.reason == "abort" and bool(end.chunk_tokens) for end in ends) > 5
    snapshots = [mesh.engine.snapshot() for mesh in meshes]
    in_use = [each.chunk_strategy for each in snapshots]
    assert in_use.count(strategy) > 8
    assert all(each.chunk_strategy == strategy or each.chunk_strategy_reason for each in snapshots)
