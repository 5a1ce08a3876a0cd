"""Host pages and write policies on a whole mesh: two stages of a tiny Llama, the same answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chunkmesh.layers import partition
from chunkmesh.pages import extend_chain
from chunkmesh.stored_page import page_key
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.cache_counts import CacheCounts
from stage_worker.host_pages import HostPages
from stage_worker.model_stage import load_stage
from stage_worker.stage import Stage
from tests.cached_mesh import cached_mesh
from tests.eventually import eventually
from tests.mesh import PAGE_TOKENS, Mesh, mesh
from tests.random_ids import make_prompt
from tests.reference import Reference
from tests.valkey import Valkey

NEW_TOKENS = 6
PROMPT = make_prompt(97, seed=31)
"""Six full pages and a token."""
OTHERS = [make_prompt(97, seed=seed) for seed in (32, 33)]
SMALL = 9 * PAGE_TOKENS
"""Tokens that the devices have room for: one prompt with its output."""


def stages(folder: Path) -> list[Stage]:
    """Load the tiny Llama as two stages."""
    return [load_stage(folder, layers=range(part.first, part.last)) for part in partition(4, 2)]


async def ask(running: Mesh, prompt: Sequence[int]) -> tuple[list[int], int]:
    """Run a greedy request to its end; return the output and how much of the prompt was found."""
    complete = await running.generate(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ),
    )
    await running.at_rest()
    return list(complete.output_ids), complete.cached_tokens


def counts(running: Mesh) -> CacheCounts:
    """Return what the caches were good for."""
    return running.control_loop.engine.snapshot().cache


def num_stored(valkey: Valkey) -> int:
    """Count the pages in Redis that all layers of the model have."""
    with valkey.client() as client:
        return sum(client.hlen(key) == 5 for key in client.scan_iter("cm:*"))


async def test_what_the_devices_have_evicted_is_copied_back(
    tiny: Path, reference: Reference
) -> None:
    """Another prompt takes the devices' room; the first one is found in host memory, exactly."""
    expected = [reference.generate(prompt, NEW_TOKENS) for prompt in (PROMPT, OTHERS[0])]
    async with mesh(
        tiny, stages(tiny), kv_capacity_tokens=SMALL, host_tokens=32 * PAGE_TOKENS
    ) as running:
        assert await ask(running, PROMPT) == (expected[0], 0)
        assert await ask(running, OTHERS[0]) == (expected[1], 0)
        assert await ask(running, PROMPT) == (expected[0], 96)
        assert await ask(running, OTHERS[0]) == (expected[1], 96)
        now = running.control_loop.engine.snapshot()
        info = await running.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert now.cache.evicted_pages > 0
    assert now.cache.device_hit_tokens + now.cache.host_hit_tokens == 2 * 96
    assert now.cache.host_hit_tokens > 96
    assert now.cache.redis_hit_tokens == 0
    assert all(rate > 0 for rate in now.host_bytes_per_s)
    assert info.cache.host_hit_tokens == now.cache.host_hit_tokens
    assert (info.cache.num_host_pages, info.cache.num_host_cached_pages) == (32, 12)


async def test_redis_brings_what_is_behind_host_pages(
    tiny: Path, reference: Reference, valkey: Valkey
) -> None:
    """Host memory of three pages: three are copied, three are read, and all six are right."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with cached_mesh(
        tiny, stages(tiny), valkey.url, host_tokens=3 * PAGE_TOKENS, load_policy="wait_complete"
    ) as running:
        assert await ask(running, PROMPT) == (expected, 0)
        assert await ask(running, PROMPT) == (expected, 96)
        cache = counts(running)
    assert (cache.device_hit_tokens, cache.host_hit_tokens, cache.redis_hit_tokens) == (0, 48, 48)
    assert cache.host_dropped_pages > 0


async def test_a_page_that_a_stage_does_not_have_is_a_miss(
    tiny: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage that knows better than the scheduler ends the hit there; nothing else happens."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    monkeypatch.setattr(HostPages, "count", lambda *_: 2)
    async with mesh(
        tiny, stages(tiny), host_tokens=32 * PAGE_TOKENS, enable_prefix_caching=False
    ) as running:
        assert await ask(running, PROMPT) == (expected, 0)
        assert await ask(running, PROMPT) == (expected, 32)


async def test_host_pages_outlive_a_broken_link(tiny: Path, reference: Reference) -> None:
    """The workers stay, so what they hold does."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with mesh(
        tiny, stages(tiny), host_tokens=32 * PAGE_TOKENS, enable_prefix_caching=False
    ) as running:
        assert await ask(running, PROMPT) == (expected, 0)
        workers = running.control_loop.workers
        epoch = workers.registry.epoch
        first = workers.route(epoch)[0].worker_id
        reason = "a test says so"
        workers._decide(workers.registry.fault(first, epoch, reason, time.monotonic()))
        await eventually(lambda: workers.registry.epoch > epoch)
        await running.stands()
        assert await ask(running, PROMPT) == (expected, 96)
        assert counts(running).host_hit_tokens == 96


async def test_selective_stores_what_was_hit(
    tiny: Path, reference: Reference, valkey: Valkey
) -> None:
    """The first request leaves nothing in Redis, the second all that it has found."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with cached_mesh(
        tiny,
        stages(tiny),
        valkey.url,
        enable_prefix_caching=True,
        hicache_write_policy="write_through_selective",
    ) as running:
        assert await ask(running, PROMPT) == (expected, 0)
        assert num_stored(valkey) == 0
        assert await ask(running, PROMPT) == (expected, 96)
        assert num_stored(valkey) == 6
        assert running.control_loop.engine.forget_cached() > 0
        async with asyncio.timeout(60):
            while (await ask(running, PROMPT))[1] != 96:
                running.control_loop.engine.forget_cached()
        assert counts(running).redis_hit_tokens > 0


@pytest.mark.parametrize("host_tokens", [0, 6 * PAGE_TOKENS], ids=["from devices", "from host"])
async def test_write_back_stores_what_has_no_room_and_the_rest_at_the_end(
    tiny: Path, reference: Reference, valkey: Valkey, host_tokens: int
) -> None:
    """Pages reach Redis when they leave the last tier, and when the scheduler drains all."""
    expected = [reference.generate(prompt, NEW_TOKENS) for prompt in (PROMPT, *OTHERS)]
    stored = []
    async with cached_mesh(
        tiny,
        stages(tiny),
        valkey.url,
        kv_capacity_tokens=SMALL,
        host_tokens=host_tokens,
        enable_prefix_caching=True,
        hicache_write_policy="write_back",
    ) as running:
        for prompt, answer in zip((PROMPT, *OTHERS), expected, strict=True):
            assert await ask(running, prompt) == (answer, 0)
            stored.append(num_stored(valkey))
        async with asyncio.timeout(60):
            while (await ask(running, PROMPT))[1] != 96:
                await asyncio.sleep(0.01)
        ids = [np.array(prompt, dtype=np.uint32) for prompt in (PROMPT, *OTHERS)]
        namespace = running.control_loop.workers.namespace_digest(tenant="", cache_salt="")
        assert namespace is not None
        keys = {page_key(d) for each in ids for d in extend_chain(namespace, each, PAGE_TOKENS)}
        assert counts(running).redis_hit_tokens > 0
        async with asyncio.timeout(60):
            await running.control_loop.write_back()
        assert running.control_loop.engine.is_idle()
    assert stored[0] == 0
    assert stored[-1] >= 3
    with valkey.client() as client:
        assert sum(client.hlen(key) == 5 for key in keys) == 18


async def test_host_pages_alone_can_be_flushed(tiny: Path, reference: Reference) -> None:
    """They are a cache, too, where nothing stays on the devices and there is no Redis."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with mesh(
        tiny, stages(tiny), host_tokens=32 * PAGE_TOKENS, enable_prefix_caching=False
    ) as running:
        assert await ask(running, PROMPT) == (expected, 0)
        await running.stub.FlushCache(pb.FlushCacheRequest())
        assert await ask(running, PROMPT) == (expected, 0)
        assert await ask(running, PROMPT) == (expected, 96)
