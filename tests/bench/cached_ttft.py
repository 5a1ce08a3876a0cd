"""Time to the first token of a prompt that was computed before: from devices, and from Redis."""

from __future__ import annotations

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
AIMS = {"device pages": 0.15, "Redis": 0.35}


def cached_ttft(model_path: Path, *, rounds: int) -> str:
    """Compare the second time of new prompts with their first, in pairs; two stages."""
    cold: dict[str, list[float]] = {name: [] for name in AIMS}
    cached: dict[str, list[float]] = {name: [] for name in AIMS}
    options = MeshOptions(model_path=model_path, num_stages=2)
    without = MeshOptions(
        model_path=model_path,
        num_stages=2,
        scheduler_flags=("--no-enable-prefix-caching", "--load-policy=wait_complete"),
    )
    with LocalMesh(options) as on_devices, LocalMesh(without) as stored:
        for mesh in (on_devices, stored):
            _twice(mesh)
        for _ in range(rounds):
            for name, mesh in (("device pages", on_devices), ("Redis", stored)):
                first_s, second_s = _twice(mesh)
                cold[name].append(first_s)
                cached[name].append(second_s)
    rows = []
    for name, aim in AIMS.items():
        first = Sample(name="cold", values=tuple(cold[name]), unit="s")
        second = Sample(name=name, values=tuple(cached[name]), unit="s")
        ratio = pair_ratios(second, first)
        rows.append([name, cell(first), cell(second), cell(ratio), f"<= {aim}"])
    return table(
        f"Time to the first token of {NUM_TOKENS} tokens, {_HIT_TOKENS} of them cached; 2 stages",
        ["from", "cold", "cached", "cached / cold", "aim"],
        rows,
    )


def _twice(mesh: LocalMesh) -> tuple[float, float]:
    """Run a new prompt, and again once all of it is stored; return both times."""
    prompt = new_prompt(NUM_TOKENS)
    with grpc.insecure_channel(mesh.scheduler_address) as channel:  # room for the new pages
        generation_pb2_grpc.GenerationStub(channel).FlushCache(pb.FlushCacheRequest())
    first_s = _ttft_s(mesh, prompt, cached_tokens=0)
    _until(lambda: _num_stored(mesh) == NUM_TOKENS // PAGE_TOKENS)
    return first_s, _ttft_s(mesh, prompt, cached_tokens=_HIT_TOKENS)


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
