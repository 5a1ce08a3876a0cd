"""Whatever happens to Redis ends as a miss: same ids, no failed request, no hang, and it heals.

Device pages are off, so that every hit comes from Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from chunkmesh.page_record import layer_field
from chunkmesh.v1 import generation_pb2 as pb
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from stage_worker.model_stage import load_stage
from tests.eventually import eventually
from tests.fault_proxy import Fault, FaultProxy
from tests.mesh import Mesh, mesh
from tests.random_ids import make_prompt
from tests.reference import Reference
from tests.valkey import Valkey

NEW_TOKENS = 6
PROMPT_TOKENS = 200
CACHED_TOKENS = 192
ANSWER_S = 15.0
"""Most that one request may take whatever the cache does; on a busy machine it takes seconds."""
HEAL_S = 30.0


class Bench:
    """A mesh behind a proxy, one prompt, and what transformers answers to it."""

    def __init__(
        self, running: Mesh, proxy: FaultProxy, valkey: Valkey, reference: Reference
    ) -> None:
        self.proxy = proxy
        self.valkey = valkey
        self._running = running
        self._reference = reference
        self._prompt = make_prompt(PROMPT_TOKENS, seed=11)
        self._expected = reference.generate(self._prompt, NEW_TOKENS)

    async def ask(self) -> int:
        """Send the prompt, check the ids and the time, wait for rest; return the cached tokens."""
        began_s = time.monotonic()
        answer = await self.generate(self._prompt)
        assert self._expected == list(answer.output_ids)
        assert time.monotonic() - began_s < ANSWER_S
        await self._running.at_rest()
        return answer.cached_tokens

    async def ask_another(self, seed: int) -> None:
        """Send a prompt that is new, and check its ids."""
        prompt = make_prompt(PROMPT_TOKENS, seed=seed)
        answer = await self.generate(prompt)
        assert self._reference.generate(prompt, NEW_TOKENS) == list(answer.output_ids)
        await self._running.at_rest()

    async def generate(self, prompt: Sequence[int]) -> pb.GenerateComplete:
        """Run a greedy request that end tokens do not end."""
        sampling = pb.SamplingParams(temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        return await self._running.generate(
            input_ids=pb.TokenIds(ids=prompt), sampling_params=sampling
        )

    async def warm(self) -> None:
        """Ask until the prompt is found."""
        await self.until(self._is_found)

    async def until(self, check: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a check holds."""
        await eventually(check, within_s=HEAL_S)

    async def _is_found(self) -> bool:
        return await self.ask() == CACHED_TOKENS


@contextlib.asynccontextmanager
async def bench(
    tiny: Path, valkey: Valkey, reference: Reference, **settings: Any
) -> AsyncIterator[Bench]:
    """Run a mesh of two stages, HiCache and a proxy before Valkey, the prompt being cached."""
    stages = [load_stage(tiny, layers=layers) for layers in (range(2), range(2, 4))]
    async with contextlib.AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(valkey.port).listening())
        hicache = HiCacheSettings(port=0, http_port=0, redis_url=(proxy.url,))
        address = await stack.enter_async_context(hicache_running(hicache, ping_s=0.05))
        running = await stack.enter_async_context(
            mesh(
                tiny,
                stages,
                redis_url=proxy.url,
                hicache_url=str(address),
                enable_prefix_caching=False,
                load_timeout_ms=1000.0,
                **settings,
            )
        )
        made = Bench(running, proxy, valkey, reference)
        await made.warm()
        yield made


def value(name: str, **labels: str) -> float:
    """Read a metric of this process."""
    return REGISTRY.get_sample_value(name, labels or None) or 0.0


def faults() -> float:
    """Count what operators can see of all faults of the cache."""
    pages = [
        value("chunkmesh_pages_not_loaded_total", reason=reason)
        for reason in ("missing", "damaged", "redis", "late")
    ]
    redis = value("chunkmesh_redis_faults_total", call="ping")
    return sum(pages) + value("chunkmesh_cache_faults_total") + redis


PASSING = {
    "slow": Fault(delay_s=0.3),
    "silent": Fault(silent=True),
    "refusing": Fault(refuse=True),
    "cut in a reply": Fault(cut=True),
    "flipping bits": Fault(flip=True),
}


@pytest.mark.parametrize("name", PASSING)
async def test_faults_that_pass(
    tiny: Path, valkey: Valkey, reference: Reference, name: str
) -> None:
    """While Redis misbehaves requests are served right, and afterwards the prompt is found."""
    async with bench(tiny, valkey, reference) as made:
        before = faults()
        made.proxy.fault = PASSING[name]
        for seed in (21, 22, 23):
            await made.ask()
            await made.ask_another(seed)
        made.proxy.fault = Fault()
        await made.warm()
        assert name == "slow" or faults() > before


async def test_a_flipped_byte_at_rest(tiny: Path, valkey: Valkey, reference: Reference) -> None:
    """Damaged pages are seen by their checksum, forgotten, and stored anew."""
    async with bench(tiny, valkey, reference) as made:
        before = value("chunkmesh_pages_not_loaded_total", reason="damaged")
        spoil(valkey, lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:])
        assert await made.ask() < CACHED_TOKENS
        assert value("chunkmesh_pages_not_loaded_total", reason="damaged") > before
        await made.warm()


async def test_a_truncated_value(tiny: Path, valkey: Valkey, reference: Reference) -> None:
    """A value that lacks its end is as bad as a wrong one."""
    async with bench(tiny, valkey, reference) as made:
        spoil(valkey, lambda data: data[:-1])
        assert await made.ask() < CACHED_TOKENS
        await made.warm()


async def test_half_a_page_missing(tiny: Path, valkey: Valkey, reference: Reference) -> None:
    """A page that one stage lacks is no page for any of them."""
    async with bench(tiny, valkey, reference) as made:
        before = value("chunkmesh_pages_not_loaded_total", reason="missing")
        with valkey.client() as client:
            for key in page_keys(valkey):
                client.hdel(key, layer_field(3))
        assert await made.ask() == 0
        assert value("chunkmesh_pages_not_loaded_total", reason="missing") > before
        await made.warm()


async def test_a_flush(tiny: Path, valkey: Valkey, reference: Reference) -> None:
    """O20 (b): the index believes in pages that are gone."""
    async with bench(tiny, valkey, reference) as made:
        with valkey.client() as client:
            client.flushall()
        assert await made.ask() == 0
        await made.warm()


async def test_a_restart(tiny: Path, valkey: Valkey, reference: Reference) -> None:
    """O20 (c): down in the midst of requests, up again empty; nobody restarts anything."""
    async with bench(tiny, valkey, reference) as made:
        asking = asyncio.create_task(made.ask())
        valkey.stop()
        await asking
        assert await made.ask() == 0
        valkey.start()
        await made.warm()


async def test_eviction_by_redis_itself(tiny: Path, valkey: Valkey, reference: Reference) -> None:
    """A server that throws away what it likes makes holes; a hit ends before the first."""
    async with bench(tiny, valkey, reference) as made:
        with valkey.client() as client:
            keys = page_keys(valkey)
            client.delete(*keys[::2])
        assert await made.ask() < CACHED_TOKENS
        await made.warm()


async def test_a_full_server(tiny: Path, valkey: Valkey, reference: Reference) -> None:
    """O20 (a): refused pages are counted and missed, and stored when there is room again."""
    async with bench(tiny, valkey, reference) as made:
        before = value("chunkmesh_pages_not_stored_total", reason="redis")
        with valkey.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] + 20_000)
            for seed in range(31, 36):
                await made.ask_another(seed)
            name = "chunkmesh_pages_not_stored_total"
            await eventually(lambda: value(name, reason="redis") > before)
            client.config_set("maxmemory", 0)
            client.flushall()
        await made.warm()


async def test_a_server_that_turns_old(
    tiny: Path, valkey: Valkey, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of a version that is too old is not used; a newer one is, without a restart."""
    async with bench(tiny, valkey, reference) as made:
        with monkeypatch.context() as patched:
            patched.setattr("chunkmesh.kv_servers.MIN_VERSION", (99, 0))
            made.proxy.drop_connections()
            assert await made.ask() == 0
        await made.warm()


def page_keys(valkey: Valkey) -> list[bytes]:
    """Return the keys of all pages."""
    with valkey.client() as client:
        return sorted(client.keys("cm:*"))


def spoil(valkey: Valkey, change: Callable[[bytes], bytes]) -> None:
    """Change one layer's value of every page."""
    with valkey.client() as client:
        for key in page_keys(valkey):
            data = client.hget(key, layer_field(1))
            assert isinstance(data, bytes)
            client.hset(key, layer_field(1), change(data))
