"""Prefixes on the devices and in Redis: whatever becomes of either, the same answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkmesh.kv_store import KvStore
from chunkmesh.layers import partition
from chunkmesh.pages import extend_chain
from chunkmesh.stored_page import PageRead, page_key
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import stage_pb2
from stage_worker.model_stage import load_stage
from tests.cached_mesh import cached_mesh
from tests.eventually import eventually
from tests.gate import Gate
from tests.mesh import PAGE_TOKENS, Mesh, mesh
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference
from tests.valkey import Valkey

NEW_TOKENS = 8
PROMPT = make_prompt(97, seed=1)
PAGE_COUNT = 6
"""Full pages of the prompt; they leave one token to compute."""


def stages(folder: Path, num_stages: int, *, gate: Gate | None = None) -> list[RecordedStage]:
    """Load the tiny Llama as this many stages, held by a gate or not."""
    return [
        RecordedStage(load_stage(folder, layers=range(part.first, part.last)), gate=gate)
        for part in partition(4, num_stages)
    ]


async def ask(
    running: Mesh, prompt: Sequence[int], *, new_tokens: int = NEW_TOKENS, **more: Any
) -> pb.GenerateComplete:
    """Run a greedy request that end tokens do not end."""
    return await running.generate(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=new_tokens, ignore_eos=True
        ),
        **more,
    )


def told(complete: pb.GenerateComplete) -> tuple[list[int], int]:
    """Return the output and how much of the prompt was found."""
    return list(complete.output_ids), complete.cached_tokens


def keys(running: Mesh) -> list[bytes]:
    """Return the prompt's keys in Redis."""
    namespace = running.control_loop.workers.namespace_digest(tenant="", cache_salt="")
    assert namespace is not None
    ids = np.array(PROMPT, dtype=np.uint32)
    return [page_key(digest) for digest in extend_chain(namespace, ids, PAGE_TOKENS)]


def forget_device_pages(running: Mesh) -> None:
    """Drop what is in memory, but nothing of what is stored."""
    assert running.control_loop.engine.forget_cached() > 0


@pytest.mark.parametrize("layers", [range(4), range(2, 4)], ids=["both stages", "stage 2 only"])
async def test_o18_the_hit_ends_at_a_page_that_has_vanished(
    tiny: Path, reference: Reference, valkey: Valkey, layers: range
) -> None:
    """Pages 0 and 1 on both stages, whoever lost page 2; afterwards it is stored again."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with cached_mesh(
        tiny, stages(tiny, 2), valkey.url, enable_prefix_caching=True
    ) as running:
        assert (expected, 0) == told(await ask(running, PROMPT))
        await running.at_rest()
        forget_device_pages(running)
        page = keys(running)[2]
        with valkey.client() as client:
            assert client.hdel(page, *layers) == len(layers)
            assert (expected, 32) == told(await ask(running, PROMPT))
            await running.at_rest()
            await eventually(lambda: client.hlen(page) == 5)
        forget_device_pages(running)
        async with asyncio.timeout(60):
            while told(await ask(running, PROMPT)) != (expected, 96):
                await running.at_rest()
                forget_device_pages(running)


async def test_o18_a_page_that_has_vanished_is_no_loss_while_the_devices_have_it(
    tiny: Path, reference: Reference, valkey: Valkey
) -> None:
    """Redis is not even asked for it."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with cached_mesh(
        tiny, stages(tiny, 2), valkey.url, enable_prefix_caching=True
    ) as running:
        await ask(running, PROMPT)
        await running.at_rest()
        with valkey.client() as client:
            client.delete(keys(running)[2])
        assert (expected, 96) == told(await ask(running, PROMPT))


@pytest.mark.parametrize("on_devices", [False, True])
async def test_o20_a_flushed_redis_costs_time_and_nothing_else(
    tiny: Path, reference: Reference, valkey: Valkey, *, on_devices: bool
) -> None:
    """The tree claims pages that are gone: that is found out by the first who reads them."""
    longer = [*PROMPT, *make_prompt(40, seed=2)]
    expected = [reference.generate(prompt, NEW_TOKENS) for prompt in (PROMPT, longer)]
    async with cached_mesh(
        tiny, stages(tiny, 2), valkey.url, enable_prefix_caching=on_devices
    ) as running:
        assert expected[0] == told(await ask(running, PROMPT))[0]
        await running.at_rest()
        with valkey.client() as client:
            client.flushall()
        assert (expected[1], 96 if on_devices else 0) == told(await ask(running, longer))
        await running.at_rest()
        if on_devices:
            forget_device_pages(running)
        async with asyncio.timeout(60):
            while told(await ask(running, longer)) != (expected[1], 128):
                await running.at_rest()


async def test_only_what_is_behind_the_devices_pages_is_loaded(
    tiny: Path, reference: Reference, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pages are there from another prompt with the same beginning; four are read."""
    read: list[int] = []
    read_pages = KvStore.read_pages

    def count(store: KvStore, digests: Sequence[bytes], *args: Any) -> tuple[PageRead, ...]:
        read.append(len(digests))
        return read_pages(store, digests, *args)

    monkeypatch.setattr(KvStore, "read_pages", count)
    ran = stages(tiny, 2)
    async with cached_mesh(tiny, ran, valkey.url, enable_prefix_caching=True) as running:
        await ask(running, PROMPT)
        await running.at_rest()
        forget_device_pages(running)
        await ask(running, PROMPT[:32], new_tokens=2)
        await running.at_rest()
        answer = await ask(running, PROMPT)
        counts = running.control_loop.engine.snapshot().cache
    assert (reference.generate(PROMPT, NEW_TOKENS), 96) == told(answer)
    assert read == [1, 1, 4, 4]
    assert (counts.device_hit_tokens, counts.redis_hit_tokens) == (32, 16 + 64)
    assert counts.loads["complete"] == 2


async def test_o21_pages_stay_while_a_request_uses_them(tiny: Path, reference: Reference) -> None:
    """12 pages: 4 of a chain that is in use; three newcomers of 4 take turns on the rest."""
    chain = make_prompt(65, seed=21)
    others = [make_prompt(60, seed=seed) for seed in (22, 23, 24)]
    gate = Gate()
    gate.open()
    (stage,) = stages(tiny, 1, gate=gate)
    async with mesh(tiny, [stage], kv_capacity_tokens=12 * 16) as running:
        await ask(running, chain, new_tokens=1)
        await running.at_rest()
        gate.close()
        long_one = asyncio.ensure_future(ask(running, chain, new_tokens=40))
        await running.has_requests(1)
        newcomers = asyncio.gather(*(ask(running, other, new_tokens=4) for other in others))
        await running.has_requests(4)
        gate.open()
        first, answers = await long_one, await newcomers
        parts = [len(each.entries) for each in stage.microbatches]
        assert 1 == parts[-1] < max(parts), "the chain was not in use to the end"
        await running.at_rest()
        again = await ask(running, chain, new_tokens=1)
        await running.at_rest()
        snapshot = running.control_loop.engine.snapshot()
    assert (reference.generate(chain, 40), 64) == told(first)
    expected = [(reference.generate(other, 4), 0) for other in others]
    assert expected == [told(answer) for answer in answers]
    assert again.cached_tokens == 64
    assert (snapshot.num_preemptions, snapshot.num_free_pages) == (0, 12)
    assert snapshot.cache.evicted_pages > 0


async def test_pages_outlive_a_broken_link(tiny: Path, reference: Reference) -> None:
    """The workers stay, so their pages do; a new epoch begins with what the devices hold."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with mesh(tiny, stages(tiny, 3)) as running:
        assert (expected, 0) == told(await ask(running, PROMPT))
        await running.at_rest()
        workers = running.control_loop.workers
        epoch = workers.registry.epoch
        fault = stage_pb2.Fault(epoch=epoch, reason="the link broke")
        workers._hear_fault(workers.route(epoch)[1].worker_id, fault)
        await running.stands()
        assert workers.registry.epoch > epoch
        assert (expected, 96) == told(await ask(running, PROMPT))


async def test_a_flush_forgets_the_devices_pages(
    tiny: Path, reference: Reference, valkey: Valkey
) -> None:
    """Whoever flushes wants everything computed anew."""
    async with cached_mesh(
        tiny, stages(tiny, 2), valkey.url, enable_prefix_caching=True
    ) as running:
        await ask(running, PROMPT)
        await running.at_rest()
        flushed = await running.stub.FlushCache(pb.FlushCacheRequest())
        assert flushed.num_pages == PAGE_COUNT
        assert (reference.generate(PROMPT, NEW_TOKENS), 0) == told(await ask(running, PROMPT))


async def test_a_mesh_without_redis_can_be_flushed(tiny: Path) -> None:
    """Its devices hold pages all the same."""
    async with mesh(tiny, stages(tiny, 2)) as running:
        await ask(running, PROMPT)
        await running.at_rest()
        flushed = await running.stub.FlushCache(pb.FlushCacheRequest())
        assert flushed.num_pages == PAGE_COUNT
        assert told(await ask(running, PROMPT))[1] == 0


async def test_a_resumed_output_does_not_compute_its_prompt_again(
    tiny: Path, reference: Reference
) -> None:
    """Two that outgrow the pool: the younger leaves, and finds most of what it has computed."""
    prompts = [make_prompt(60, seed=seed) for seed in (31, 32)]
    gate = Gate()
    ran = stages(tiny, 2, gate=gate)
    async with mesh(tiny, ran, kv_capacity_tokens=11 * 16) as running:
        asking = asyncio.gather(*(ask(running, each, new_tokens=50) for each in prompts))
        await running.has_requests(2)
        gate.open()
        both = await asking
    assert [reference.generate(each, 50) for each in prompts] == [
        list(each.output_ids) for each in both
    ]
    assert sum(each.num_preemptions for each in both) == 1
    computed = sum(each.num_tokens for each in ran[0].microbatches)
    assert computed < 2 * (60 + 49) + 60


class SlowRedis:
    """Answers reads of the third page of a prompt, and of later ones, only when it is told to."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.is_asked = threading.Event()
        self.asked: list[bytes] = []
        """First pages of the reads that waited."""
        self.slow_digests: set[bytes] = set()

    def read(self, digests: Sequence[bytes]) -> None:
        """Wait, if these are slow."""
        if self.slow_digests.intersection(digests):
            self.asked.append(digests[0])
            self.is_asked.set()
            assert self.may_go.wait(60)


@pytest.fixture
def slow_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowRedis]:
    """Let workers read a page at a time, from a Redis that can be slow."""
    slow = SlowRedis()
    read_pages = KvStore.read_pages

    def read(store: KvStore, digests: Sequence[bytes], *args: Any) -> tuple[PageRead, ...]:
        slow.read(digests)
        return read_pages(store, digests, *args)

    monkeypatch.setattr("stage_worker.page_jobs._FIRST_GROUP_BYTES", 1)
    monkeypatch.setattr("stage_worker.page_jobs._GROUP_BYTES", 1)
    monkeypatch.setattr(KvStore, "read_pages", read)
    yield slow
    slow.may_go.set()


async def stored_and_slow(running: Mesh, slow: SlowRedis) -> None:
    """Let the prompt be stored, and its third page and those behind it be slow to read."""
    await ask(running, PROMPT)
    await running.at_rest()
    namespace = running.control_loop.workers.namespace_digest(tenant="", cache_salt="")
    assert namespace is not None
    ids = np.array(PROMPT, dtype=np.uint32)
    slow.slow_digests.update(extend_chain(namespace, ids, PAGE_TOKENS)[2:])


@pytest.mark.parametrize(
    "settings",
    [{"load_policy": "timeout", "load_timeout_ms": 1500.0}, {"load_policy": "best_effort"}],
    ids=["timeout", "best_effort"],
)
async def test_what_is_there_in_time_is_used(
    tiny: Path,
    reference: Reference,
    valkey: Valkey,
    slow_redis: SlowRedis,
    settings: dict[str, Any],
) -> None:
    """Two pages come, the rest hangs: the request begins behind the two, on all stages."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    settings = {"load_timeout_ms_per_1k_tokens": 0.0, "max_running_requests": 1, **settings}
    gate = Gate()
    gate.open()
    async with cached_mesh(tiny, stages(tiny, 2, gate=gate), valkey.url, **settings) as running:
        await stored_and_slow(running, slow_redis)
        gate.close()
        other = make_prompt(40, seed=5)
        before = asyncio.ensure_future(ask(running, other, new_tokens=20))
        await eventually(lambda: running.control_loop.engine.snapshot().num_running == 1)
        asked = asyncio.ensure_future(ask(running, PROMPT))
        # Both threads of both stages have begun a slow one, behind the first two.
        await eventually(lambda: len(slow_redis.asked) >= 4)
        gate.open()
        assert (expected, 32) == told(await asked)
        assert reference.generate(other, 20) == list((await before).output_ids)
        counts = running.control_loop.engine.snapshot().cache
        assert counts.loads["partial"] == 1
        assert counts.timed_out_loads == (settings["load_policy"] == "timeout")
        slow_redis.may_go.set()  # the threads that wait are those that store, too
        await running.at_rest()
        if settings["load_policy"] == "best_effort":
            return  # nobody is before it any more, so it never waits for its load
        async with asyncio.timeout(60):
            while told(await ask(running, PROMPT)) != (expected, 96):
                await running.at_rest()


async def test_wait_complete_waits(
    tiny: Path, reference: Reference, valkey: Valkey, slow_redis: SlowRedis
) -> None:
    """Whoever wants nothing computed twice gets that."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    settings = {"load_policy": "wait_complete", "load_timeout_ms": 1.0}
    async with cached_mesh(tiny, stages(tiny, 2), valkey.url, **settings) as running:
        await stored_and_slow(running, slow_redis)
        answer = asyncio.ensure_future(ask(running, PROMPT))
        assert await asyncio.to_thread(slow_redis.is_asked.wait, 30)
        await asyncio.sleep(0.2)
        assert not answer.done()
        slow_redis.may_go.set()
        assert (expected, 96) == told(await answer)


async def test_who_goes_away_leaves_no_load_behind(
    tiny: Path, reference: Reference, valkey: Valkey, slow_redis: SlowRedis
) -> None:
    """An abort of a waiting request ends its load everywhere; the next one finds all as it was."""
    expected = reference.generate(PROMPT, NEW_TOKENS)
    async with cached_mesh(
        tiny, stages(tiny, 2), valkey.url, load_policy="wait_complete"
    ) as running:
        await stored_and_slow(running, slow_redis)
        for _ in range(3):
            call = running.stub.Generate(
                pb.GenerateRequest(input_ids=pb.TokenIds(ids=PROMPT), request_id="r")
            )
            reading = asyncio.ensure_future(call.read())
            await eventually(lambda: running.control_loop.engine.snapshot().num_loads > 0)
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await running.at_rest()
        slow_redis.may_go.set()
        assert (expected, 96) == told(await ask(running, PROMPT))
        counts = running.control_loop.engine.snapshot().cache
    assert counts.loads["dropped"] == 3
