"""Meshes of a tiny random Llama give transformers' ids, whatever the cut and the cache."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from chunkmesh.layers import partition
from chunkmesh.ports import bind_unused
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import hicache_pb2
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from stage_worker.model_stage import load_stage
from tests.cached_mesh import cached_mesh
from tests.eventually import eventually
from tests.gate import Gate
from tests.mesh import Mesh, mesh
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference
from tests.valkey import Valkey

NEW_TOKENS = 8
on_devices = pytest.mark.parametrize("on_devices", [False, True], ids=["stored", "on devices"])
"""From where prefixes come at the second time."""
BORDER_LENGTHS = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)


def stages(folder: Path, num_stages: int) -> list[RecordedStage]:
    """Load the tiny Llama as this many stages."""
    return [
        RecordedStage(load_stage(folder, layers=range(part.first, part.last)))
        for part in partition(4, num_stages)
    ]


def check_parts(ran: Sequence[RecordedStage]) -> None:
    """Check that no stage was ever given an empty part, and only the last one was to sample."""
    for stage in ran:
        assert stage.microbatches
        assert all(entry.num_tokens > 0 for each in stage.microbatches for entry in each.entries)
    assert not any(each.sampling for stage in ran[:-1] for each in stage.microbatches)


async def counted_tokens(running: Mesh) -> dict[str, float]:
    """Read the token counters of /metrics."""

    def read() -> str:
        url = f"http://{running.http_address}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    names = ("prompt", "cached", "output")
    return {name: samples[f"chunkmesh_{name}_tokens_total"] for name in names}


async def ask(running: Mesh, prompt: Sequence[int], **more: Any) -> pb.GenerateComplete:
    """Run a greedy request that end tokens do not end."""
    return await running.generate(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ),
        **more,
    )


async def test_o15_prompt_lengths_around_chunk_and_page_borders(
    tiny: Path, reference: Reference
) -> None:
    """Exactly the reference's ids and chunks, alone and all at once; no token before the first."""
    prompts = [make_prompt(length, seed=length) for length in BORDER_LENGTHS]
    expected = [reference.generate(prompt, NEW_TOKENS) for prompt in prompts]
    ran = stages(tiny, 2)
    async with mesh(tiny, ran, enable_prefix_caching=False) as running:
        alone = [await ask(running, prompt) for prompt in prompts]
        together = await asyncio.gather(*(ask(running, prompt) for prompt in prompts))
        await running.at_rest()
    assert expected == [list(each.output_ids) for each in alone]
    assert expected == [list(each.output_ids) for each in together]
    check_parts(ran)
    num_chunks = [1 if n <= 64 else 2 if n <= 128 else 3 for n in BORDER_LENGTHS]
    for answers in (alone, together):
        assert num_chunks == [len(each.chunk_tokens) for each in answers]
        assert list(BORDER_LENGTHS) == [sum(each.chunk_tokens) for each in answers]


async def test_o15_no_token_before_the_prompt_is_done(tiny: Path, reference: Reference) -> None:
    """Middle chunks give progress and no tokens; what is streamed afterwards is the answer."""
    prompts = [make_prompt(length, seed=length) for length in BORDER_LENGTHS]
    async with mesh(tiny, stages(tiny, 2)) as running:
        together = await asyncio.gather(
            *(
                running.responses(
                    input_ids=pb.TokenIds(ids=prompt),
                    sampling_params=pb.SamplingParams(
                        temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
                    ),
                    stream=True,
                    return_progress=True,
                )
                for prompt in prompts
            )
        )
    for prompt, responses in zip(prompts, together, strict=True):
        events = [each.WhichOneof("event") for each in responses]
        first = events.index("chunk")
        assert {"progress"} == set(events[:first])
        assert {"chunk"} == set(events[first:-1])
        processed = [each.progress.processed for each in responses[:first]]
        assert sorted(processed) == processed
        assert len(prompt) == processed[-1] == responses[0].progress.total
        streamed = [list(each.chunk.token_ids) for each in responses[first:-1]]
        assert all(streamed)
        assert reference.generate(prompt, NEW_TOKENS) == [id_ for ids in streamed for id_ in ids]


@on_devices
@pytest.mark.parametrize("num_stages", [1, 2, 3])
async def test_o16_a_second_request_finds_whole_pages(
    tiny: Path, reference: Reference, valkey: Valkey, num_stages: int, *, on_devices: bool
) -> None:
    """Whole pages only, the last prompt token is always computed, usage and metrics agree."""
    lengths = (15, 16, 17, 31, 32, 33, 48, 49)
    ran = stages(tiny, num_stages)
    async with cached_mesh(tiny, ran, valkey.url, enable_prefix_caching=on_devices) as running:
        for length, hit in zip(lengths, (0, 0, 16, 16, 16, 32, 32, 48), strict=True):
            prompt = make_prompt(length, seed=100 + length)
            expected = reference.generate(prompt, NEW_TOKENS)
            first = await ask(running, prompt)
            await running.at_rest()
            before = await counted_tokens(running)
            second = await ask(running, prompt)
            after = await counted_tokens(running)
            told = (second.prompt_tokens, second.cached_tokens, second.completion_tokens)
            assert (length, hit, NEW_TOKENS) == told
            assert told == tuple(after[name] - before[name] for name in after)
            assert (expected, 0) == (list(first.output_ids), first.cached_tokens)
            assert (expected, hit) == (list(second.output_ids), second.cached_tokens)
            assert length - hit == sum(second.chunk_tokens)
    check_parts(ran)


@on_devices
async def test_o16_prompts_that_share_a_page_and_a_quarter(
    tiny: Path, reference: Reference, valkey: Valkey, *, on_devices: bool
) -> None:
    """A page that two requests share in part must never be written by both."""
    async with cached_mesh(
        tiny, stages(tiny, 2), valkey.url, enable_prefix_caching=on_devices
    ) as running:
        for turn in range(20):
            shared = make_prompt(20, seed=1000 + turn)
            prompts = [shared + make_prompt(20, seed=2000 + 2 * turn + n) for n in range(2)]
            expected = [reference.generate(prompt, NEW_TOKENS) for prompt in prompts]
            together = await asyncio.gather(*(ask(running, prompt) for prompt in prompts))
            assert expected == [list(each.output_ids) for each in together]
            assert all(each.cached_tokens <= 16 for each in together)
            await running.at_rest()
            later = shared + make_prompt(20, seed=3000 + turn)
            answer = await ask(running, later)
            assert reference.generate(later, NEW_TOKENS) == list(answer.output_ids)
            assert 16 == answer.cached_tokens
            await running.at_rest()
            for prompt, ids in zip(prompts, expected, strict=True):
                again = await ask(running, prompt)
                assert (ids, 32) == (list(again.output_ids), again.cached_tokens)
            await running.at_rest()


@on_devices
async def test_o12_cancels_leave_leases_connections_and_streams_as_they_were(
    tiny: Path, reference: Reference, valkey: Valkey, *, on_devices: bool
) -> None:
    """A hundred clients that go away in mid-prefill, each holding a hit; the next one is served."""
    shared = make_prompt(100, seed=40)
    loaded = [load_stage(tiny, layers=range(part.first, part.last)) for part in partition(4, 3)]
    gate = Gate()
    gate.open()
    ran = [RecordedStage(stage, gate=gate if stage is loaded[-1] else None) for stage in loaded]
    async with cached_mesh(tiny, ran, valkey.url, enable_prefix_caching=on_devices) as running:
        await ask(running, shared)
        await running.at_rest()
        for index in range(100):
            if index == 20:
                before = await resources_at_rest(running, valkey)
            gate.close()
            await cancel_in_prefill(running, ran, gate, shared[:96] + make_prompt(544, seed=index))
        assert before == await resources_at_rest(running, valkey)
        assert [{}, {}, {}] == [stage._tables._rows for stage in loaded]
        prompt = shared[:96] + make_prompt(544, seed=99)
        answer = await ask(running, prompt)
        await running.at_rest()
    assert reference.generate(prompt, NEW_TOKENS) == list(answer.output_ids)
    assert answer.cached_tokens >= 96
    check_parts(ran)


async def cancel_in_prefill(
    running: Mesh, ran: list[RecordedStage], gate: Gate, prompt: list[int]
) -> None:
    """Cancel a request once the first stage has run its third chunk, and come to rest.

    The gate holds the last stage until the cancel has been heard.
    """
    wanted = len(ran[0].microbatches) + 3
    call = running.stub.Generate(pb.GenerateRequest(input_ids=pb.TokenIds(ids=prompt)))
    reading = asyncio.ensure_future(call.read())
    await eventually(lambda: len(ran[0].microbatches) >= wanted)
    call.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await running.has_requests(0)
    gate.open()
    await running.at_rest()
    assert len(ran[0].microbatches) < wanted - 3 + 9, "the whole prompt was computed for nobody"


async def resources_at_rest(running: Mesh, valkey: Valkey) -> dict[str, int]:
    """Count what is left once no call to the cache is under way and all leases are back."""
    found: dict[str, int] = {}

    async def are_back() -> bool:
        found.update(await resources(running, valkey))
        return not (found["leases"] or found["cache calls"])

    await eventually(are_back)
    return found


async def resources(running: Mesh, valkey: Valkey) -> dict[str, int]:
    """Count what a request could leave behind, but for pages and rows."""
    hicache = running.control_loop._cache._hicache
    assert hicache is not None
    stats = await hicache._stub.GetStats(hicache_pb2.GetStatsRequest())
    with valkey.client() as client:
        clients = client.client_list()
    return {
        "leases": stats.num_leases,
        "redis connections": len(clients),
        "worker streams": len(running.control_loop.workers._streams),
        "cache calls": len(running.control_loop._cache._tasks),
        "followed timelines": len(running.control_loop.workers.timeline._tracks),
    }


async def test_pages_of_one_split_serve_another(
    tiny: Path, reference: Reference, valkey: Valkey
) -> None:
    """A prompt written by two stages is a hit on three, with the same ids."""
    prompt = make_prompt(100, seed=5)
    expected = reference.generate(prompt, NEW_TOKENS)
    async with cached_mesh(tiny, stages(tiny, 2), valkey.url) as running:
        await ask(running, prompt)
        await running.at_rest()
    async with cached_mesh(tiny, stages(tiny, 3), valkey.url) as running:
        async with asyncio.timeout(60):
            while (await ask(running, prompt)).cached_tokens == 0:
                await running.at_rest()
        answer = await ask(running, prompt)
    assert (expected, 96) == (list(answer.output_ids), answer.cached_tokens)


async def test_a_salt_keeps_prefixes_apart(tiny: Path, valkey: Valkey) -> None:
    """Requests of another salt must not see that a prompt was cached."""
    prompt = make_prompt(40, seed=6)
    async with cached_mesh(tiny, stages(tiny, 2), valkey.url) as running:
        await ask(running, prompt, cache_salt="a")
        await running.at_rest()
        other = await ask(running, prompt, cache_salt="b")
        await running.at_rest()
        same = await ask(running, prompt, cache_salt="a")
    assert (0, 32) == (other.cached_tokens, same.cached_tokens)


async def test_without_redis_the_mesh_serves_as_if_nothing_were_cached(
    tiny: Path, reference: Reference, valkey: Valkey
) -> None:
    """A cache failure is a miss, never a failed request; it heals by itself."""
    prompt = make_prompt(60, seed=7)
    expected = reference.generate(prompt, NEW_TOKENS)
    async with cached_mesh(tiny, stages(tiny, 2), valkey.url) as running:
        await ask(running, prompt)
        await running.at_rest()
        assert await cache_fault(running) == ""
        valkey.stop()

        async def has_fault() -> bool:
            return bool(await cache_fault(running))

        await eventually(has_fault)
        for _ in range(3):
            answer = await ask(running, prompt)
            assert expected == list(answer.output_ids)
            await running.at_rest()
        valkey.start()
        async with asyncio.timeout(100):
            while True:
                answer = await ask(running, prompt)
                assert expected == list(answer.output_ids)
                await running.at_rest()
                if answer.cached_tokens == 48:
                    break
                await asyncio.sleep(0.1)
        assert await cache_fault(running) == ""


async def cache_fault(running: Mesh) -> str:
    """Return what users are told of the cache."""
    info = await running.stub.GetServerInfo(pb.GetServerInfoRequest())
    return info.cache_fault


async def test_without_hicache_the_mesh_serves_as_if_nothing_were_cached(
    tiny: Path, reference: Reference
) -> None:
    """An address where nobody answers costs a little time at most."""
    prompt = make_prompt(60, seed=8)
    before = REGISTRY.get_sample_value("chunkmesh_cache_faults_total") or 0
    settings: dict[str, Any] = {"hicache_url": "127.0.0.1:9", "enable_prefix_caching": False}
    async with mesh(tiny, stages(tiny, 2), **settings) as running:
        for _ in range(3):
            answer = await ask(running, prompt)
            assert reference.generate(prompt, NEW_TOKENS) == list(answer.output_ids)
            assert 0 == answer.cached_tokens
            await running.at_rest()
    assert (REGISTRY.get_sample_value("chunkmesh_cache_faults_total") or 0) > before


async def test_hicache_may_die_and_return(tiny: Path, reference: Reference, valkey: Valkey) -> None:
    """Requests go on without it; it finds the pages again by itself."""
    prompt = make_prompt(60, seed=9)
    expected = reference.generate(prompt, NEW_TOKENS)
    with bind_unused("127.0.0.1") as bound:
        port = bound.getsockname()[1]
    settings = HiCacheSettings(port=port, http_port=0, redis_url=(valkey.url,))
    url = f"127.0.0.1:{port}"
    given: dict[str, Any] = {
        "redis_url": valkey.url,
        "hicache_url": url,
        "enable_prefix_caching": False,
    }
    async with mesh(tiny, stages(tiny, 2), **given) as running:
        for hits in ((0, 48), (0, 0)):
            async with contextlib.AsyncExitStack() as hicache:
                if hits[1]:
                    await hicache.enter_async_context(hicache_running(settings, ping_s=0.05))
                for hit in hits:
                    answer = await ask(running, prompt)
                    assert (expected, hit) == (list(answer.output_ids), answer.cached_tokens)
                    await running.at_rest()
        async with hicache_running(settings, ping_s=0.05), asyncio.timeout(100):
            while (await ask(running, prompt)).cached_tokens != 48:
                await running.at_rest()


async def test_a_seed_gives_the_same_ids_on_any_split(tiny: Path) -> None:
    """Sampling depends on seed and position only, not on stages or neighbours."""
    prompt = make_prompt(30, seed=9)
    params = pb.SamplingParams(
        temperature=1.5, top_p=0.95, top_k=50, seed=3, max_new_tokens=NEW_TOKENS, ignore_eos=True
    )
    seen = []
    for num_stages in (1, 3):
        async with mesh(tiny, stages(tiny, num_stages)) as running:
            request = {"input_ids": pb.TokenIds(ids=prompt), "sampling_params": params}
            both = await asyncio.gather(
                running.generate(**request), ask(running, make_prompt(50, seed=10))
            )
            seen.append(list(both[0].output_ids))
    assert seen[0] == seen[1]
