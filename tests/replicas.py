"""Several HiCaches over one Redis, in this process, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

import grpc

from chunkmesh.kv_store import KvStore
from chunkmesh.v1 import common_pb2, hicache_pb2_grpc
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.server import running
from hicache.settings import HiCacheSettings
from tests.eventually import eventually
from tests.hicache_admin import INFO
from tests.page_samples import FORM, NAMESPACE, chain, encoded, parents
from tests.valkey import Valkey

DIGESTS = chain(4)
PAGE_BYTES = FORM.model_layers * FORM.layer_bytes
ALL = pb.Selection(everything=True)
SOON_S = 1.0
"""Within which a change through one replica is seen by the others, on an idle machine."""
HiCache: TypeAlias = "hicache_pb2_grpc.HiCacheAsyncStub"


@contextlib.asynccontextmanager
async def replica(*servers: Valkey, max_bytes: int = 0) -> AsyncIterator[HiCache]:
    """Run a HiCache whose index is built, and yield a stub to it."""
    settings = HiCacheSettings(
        port=0,
        http_port=0,
        redis_url=tuple(server.url for server in servers),
        max_bytes=max_bytes,
    )
    async with (
        running(settings, ping_s=0.05) as address,
        grpc.aio.insecure_channel(str(address)) as link,
    ):
        hicache = hicache_pb2_grpc.HiCacheStub(link)
        await eventually(lambda: is_ready(hicache))
        yield hicache


@contextlib.asynccontextmanager
async def replicas(
    valkey: Valkey, num_replicas: int, *, max_bytes: int = 0
) -> AsyncIterator[tuple[HiCache, ...]]:
    """Run several."""
    async with contextlib.AsyncExitStack() as stack:
        yield tuple(
            [
                await stack.enter_async_context(replica(valkey, max_bytes=max_bytes))
                for _ in range(num_replicas)
            ]
        )


async def is_ready(hicache: HiCache) -> bool:
    """Return whether the index is built."""
    stats = await stats_of(hicache)
    return not stats.redis_fault and not stats.rebuilding


async def stats_of(hicache: HiCache) -> pb.GetStatsResponse:
    """Ask for counts."""
    return await hicache.GetStats(pb.GetStatsRequest())


async def state_of(hicache: HiCache) -> pb.NamespaceState:
    """Return the state of the one namespace, or nothing yet."""
    states = (await hicache.ListNamespaces(pb.ListNamespacesRequest())).namespaces
    return states[0] if states else pb.NamespaceState()


async def num_found(hicache: HiCache, digests: Sequence[bytes] = DIGESTS) -> int:
    """Count the leading pages, without a trace."""
    return (await hicache.Lookup(pb.LookupRequest(digests=digests))).num_matched


async def found(hicache: HiCache, num_pages: int, digests: Sequence[bytes] = DIGESTS) -> bool:
    """Whether exactly so many leading pages are found."""
    return await num_found(hicache, digests) == num_pages


async def lease(hicache: HiCache, *, ttl_ms: int = 60_000) -> str:
    """Lease the prompt."""
    request = pb.MatchRequest(digests=DIGESTS, lease_ttl_ms=ttl_ms)
    return (await hicache.Match(request)).lease_id


async def num_leases(hicache: HiCache) -> int:
    """Count live leases."""
    return (await stats_of(hicache)).num_leases


async def has_leases(hicache: HiCache, expected: int) -> bool:
    """Whether so many leases are live."""
    return await num_leases(hicache) == expected


def write(servers: Sequence[Valkey], digests: Sequence[bytes], layers: range = range(4)) -> None:
    """Store pages as a worker does."""
    store = KvStore(*(server.url for server in servers))
    assert all(store.write_pages(encoded(tuple(digests), layers)))
    store.close()


async def commit(
    servers: Valkey | Sequence[Valkey],
    hicache: HiCache,
    digests: Sequence[bytes] = DIGESTS,
    layers: range = range(4),
) -> int:
    """Store pages and report them as worker and scheduler do; return how many became visible."""
    servers = (servers,) if isinstance(servers, Valkey) else servers
    await asyncio.to_thread(write, servers, digests, layers)
    pages = tuple(digests)
    request = pb.CommitRequest(
        namespace=NAMESPACE,
        pages=[
            pb.CommittedPage(digest=digest, parent=parent)
            for digest, parent in zip(pages, parents(pages), strict=True)
        ],
        layers=common_pb2.LayerRange(first=layers.start, last=layers.stop),
        model_layers=FORM.model_layers,
        page_bytes=len(layers) * FORM.layer_bytes,
        info=INFO,
    )
    return (await hicache.Commit(request)).num_visible


def evictor(valkey: Valkey) -> str:
    """Return the name of the replica that evicts, empty if there is none."""
    with valkey.client() as client:
        name = client.get("cm-evictor")
    return name.decode() if isinstance(name, bytes) else ""


async def elected(valkey: Valkey) -> bool:
    """Whether there is an evictor."""
    return bool(evictor(valkey))


async def pages_and_evictions(hicache: HiCache) -> tuple[int, int]:
    """Count pages there and evicted."""
    stats = await stats_of(hicache)
    return stats.num_pages, stats.num_evicted_pages


async def has_pages(valkey: Valkey, num_pages: int) -> bool:
    """Whether Redis has so many pages."""
    return len(valkey.page_keys()) == num_pages
