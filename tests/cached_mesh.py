"""A mesh in this process, with a HiCache of its own over a Redis that the test runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from chunkmesh.address import HostPort
from chunkmesh.grpc_client import channel
from chunkmesh.v1 import hicache_pb2 as pb
from chunkmesh.v1 import hicache_pb2_grpc
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from stage_worker.stage import Stage
from tests.eventually import eventually
from tests.mesh import Mesh, mesh


@contextlib.asynccontextmanager
async def cached_mesh(
    folder: Path, stages: Sequence[Stage], redis_url: str, **settings: Any
) -> AsyncIterator[Mesh]:
    """Run a mesh of these stages; settings are the scheduler's.

    Nothing stays on the devices unless they say so: what is found was stored. The index is
    complete, so that what is not found is not there for this model.
    """
    hicache = HiCacheSettings(port=0, http_port=0, redis_url=(redis_url,))
    settings = {"enable_prefix_caching": False, **settings}
    async with (
        hicache_running(hicache, ping_s=0.05) as address,
        mesh(folder, stages, redis_url=redis_url, hicache_url=address, **settings) as running,
    ):
        await _index_complete(address)
        yield running


async def _index_complete(hicache: HostPort) -> None:
    async with channel(hicache) as link:
        stub = hicache_pb2_grpc.HiCacheStub(link)

        async def is_ready() -> bool:
            stats = await stub.GetStats(pb.GetStatsRequest())
            return not (stats.rebuilding or stats.redis_fault)

        await eventually(is_ready)
