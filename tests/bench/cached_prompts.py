"""Prompts that come a second time: their time to the first token, and from which tier they came.

Tiers are counted by the scheduler, stored pages by hicache-server.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Literal

import grpc

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2, hicache_pb2_grpc

Tier = Literal["device", "host", "redis"]
TIERS: tuple[Tier, ...] = ("device", "host", "redis")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of a prompt."""

    ttft_s: float
    cached_tokens: int
    hits: Mapping[Tier, int]
    """Tokens that came from each tier."""

    def all_from(self, tier: Tier) -> bool:
        """Whether everything cached came from there."""
        return self.hits[tier] == self.cached_tokens == sum(self.hits.values())


def ask(mesh: LocalMesh, prompt: bytes) -> Told:
    """Run a prompt, ids as bytes, until its first token; nobody else may use the mesh meanwhile."""
    request = pb.GenerateRequest(
        input_ids_le=prompt,
        sampling_params=pb.SamplingParams(temperature=0, max_new_tokens=1, ignore_eos=True),
    )
    before = _hits(mesh)
    with GenerationClient(HostPort.parse(mesh.scheduler_address)) as client:
        *_, last = client.generate(request)
    after = _hits(mesh)
    return Told(
        ttft_s=last.complete.ttft_ms / 1000,
        cached_tokens=last.complete.cached_tokens,
        hits={tier: after[tier] - before[tier] for tier in TIERS},
    )


def forget_all(mesh: LocalMesh) -> None:
    """Make room for new pages."""
    with grpc.insecure_channel(mesh.scheduler_address) as channel:
        generation_pb2_grpc.GenerationStub(channel).FlushCache(pb.FlushCacheRequest())


def wait_stored(mesh: LocalMesh, num_pages: int, *, patience_s: float) -> int:
    """Wait until HiCache has so many pages, or nothing new for so long; return how many it has."""
    last, since_s = _num_stored(mesh), time.monotonic()
    while last < num_pages and time.monotonic() - since_s < patience_s:
        time.sleep(0.05)
        num_stored = _num_stored(mesh)
        if num_stored != last:
            last, since_s = num_stored, time.monotonic()
    return last


def _hits(mesh: LocalMesh) -> dict[Tier, int]:
    with grpc.insecure_channel(mesh.scheduler_address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        cache = stub.GetServerInfo(pb.GetServerInfoRequest()).cache
    return {tier: getattr(cache, f"{tier}_hit_tokens") for tier in TIERS}


def _num_stored(mesh: LocalMesh) -> int:
    hicache = mesh.endpoints.hicache
    assert hicache is not None, "the mesh stores nothing"
    with grpc.insecure_channel(str(hicache.grpc)) as channel:
        stats = hicache_pb2_grpc.HiCacheStub(channel).GetStats(hicache_pb2.GetStatsRequest())
    return int(stats.num_pages)
