"""Time to the first token of a prompt that was computed before: from devices, host memory, Redis.

What keeps pages off the devices is `--no-enable-prefix-caching`: an ended request leaves nothing
there, so that the second time finds what a prompt does whose device pages others have taken. Which
tier the tokens came from is counted by the scheduler and checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2, hicache_pb2_grpc
from tests.bench.measure import Sample, cell, pair_ratios, table
from tests.bench.mesh_client import new_prompt

NUM_TOKENS = 4000
PAGE_TOKENS = 64
_HIT_TOKENS = (NUM_TOKENS - 1) // PAGE_TOKENS * PAGE_TOKENS
_STORE_S = 60.0
_NOT_ON_DEVICES = ("--no-enable-prefix-caching", "--load-policy=wait_complete")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tier:
    """Where the second time finds the prompt."""

    name: str
    counter: str
    """Field of GetServerInfo.cache that counts what came from it."""
    aim: str
    """Of cached / cold."""
    scheduler_flags: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()


_TIERS = (
    _Tier(name="device pages", counter="device_hit_tokens", aim="<= 0.15"),
    _Tier(
        name="host pages",
        counter="host_hit_tokens",
        aim="below Redis",
        scheduler_flags=_NOT_ON_DEVICES,
        worker_flags=("--hicache-size=1",),
    ),
    _Tier(
        name="Redis",
        counter="redis_hit_tokens",
        aim="<= 0.35",
        scheduler_flags=_NOT_ON_DEVICES,
    ),
)


def cached_ttft(model_path: Path, *, rounds: int) -> str:
    """Compare the second time of new prompts with their first, in pairs; two stages."""
    cold: dict[str, list[float]] = {tier.name: [] for tier in _TIERS}
    cached: dict[str, list[float]] = {tier.name: [] for tier in _TIERS}
    with contextlib.ExitStack() as stack:
        meshes = [stack.enter_context(_mesh(model_path, tier)) for tier in _TIERS]
        for tier, mesh in zip(_TIERS, meshes, strict=True):
            _twice(mesh, tier)
        for _ in range(rounds):
            for tier, mesh in zip(_TIERS, meshes, strict=True):
                first_s, second_s = _twice(mesh, tier)
                cold[tier.name].append(first_s)
                cached[tier.name].append(second_s)
    rows = []
    for tier in _TIERS:
        first = Sample(name="cold", values=tuple(cold[tier.name]), unit="s")
        second = Sample(name=tier.name, values=tuple(cached[tier.name]), unit="s")
        rows.append(
            [tier.name, cell(first), cell(second), cell(pair_ratios(second, first)), tier.aim]
        )
    return table(
        f"Time to the first token of {NUM_TOKENS} tokens, {_HIT_TOKENS} of them cached; 2 stages",
        ["from", "cold", "cached", "cached / cold", "aim"],
        rows,
    )


def _mesh(model_path: Path, tier: _Tier) -> LocalMesh:
    """Return a mesh whose prompts are found in a tier the second time."""
    return LocalMesh(
        MeshOptions(
            model_path=model_path,
            num_stages=2,
            scheduler_flags=tier.scheduler_flags,
            worker_flags=tier.worker_flags,
        )
    )


def _twice(mesh: LocalMesh, tier: _Tier) -> tuple[float, float]:
    """Run a new prompt, and again once all of it is stored; return both times."""
    prompt = new_prompt(NUM_TOKENS)
    with grpc.insecure_channel(mesh.scheduler_address) as channel:  # room for the new pages
        generation_pb2_grpc.GenerationStub(channel).FlushCache(pb.FlushCacheRequest())
    first_s = _ttft_s(mesh, prompt, cached_tokens=0)
    _until(lambda: _num_stored(mesh) == NUM_TOKENS // PAGE_TOKENS)
    before = _num_hit_tokens(mesh, tier)
    second_s = _ttft_s(mesh, prompt, cached_tokens=_HIT_TOKENS)
    assert _num_hit_tokens(mesh, tier) - before == _HIT_TOKENS, f"not from {tier.name}"
    return first_s, second_s


def _ttft_s(mesh: LocalMesh, prompt: list[int], *, cached_tokens: int) -> float:
    """Return the time to the first token of a prompt of which so much must be cached."""
    request = pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(temperature=0, max_new_tokens=1, ignore_eos=True),
    )
    with GenerationClient(HostPort.parse(mesh.scheduler_address)) as client:
        *_, last = client.generate(request)
    assert last.complete.cached_tokens == cached_tokens, last.complete.cached_tokens
    return last.complete.ttft_ms / 1000


def _num_hit_tokens(mesh: LocalMesh, tier: _Tier) -> int:
    """Return how many tokens were found in a tier so far."""
    with grpc.insecure_channel(mesh.scheduler_address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        cache = stub.GetServerInfo(pb.GetServerInfoRequest()).cache
    num_tokens: int = getattr(cache, tier.counter)
    return num_tokens


def _num_stored(mesh: LocalMesh) -> int:
    """Return how many pages HiCache has."""
    hicache = mesh.endpoints.hicache
    assert hicache is not None
    with grpc.insecure_channel(str(hicache.grpc)) as channel:
        stats = hicache_pb2_grpc.HiCacheStub(channel).GetStats(hicache_pb2.GetStatsRequest())
    return stats.num_pages


def _until(check: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline_s = time.monotonic() + _STORE_S
    while not check():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.05)
