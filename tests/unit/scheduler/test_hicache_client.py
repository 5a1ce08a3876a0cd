"""The scheduler's calls to HiCache, against a server that fails on purpose."""

from __future__ import annotations

from typing import Any

import grpc

from chunkmesh.address import HostPort
from chunkmesh.grpc_client import channel
from chunkmesh.v1 import hicache_pb2 as pb
from chunkmesh.v1 import hicache_pb2_grpc
from scheduler.hicache_client import HiCacheClient


class _FaultyMatch(hicache_pb2_grpc.HiCacheServicer):
    """Fails every Match and counts them; Clear works."""

    num_matches = 0

    async def Match(
        self, _request: pb.MatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.MatchResponse:
        self.num_matches += 1
        await context.abort(grpc.StatusCode.INTERNAL, "broken")

    async def Clear(
        self, _request: pb.ClearRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ClearResponse:
        return pb.ClearResponse(num_pages=3)


async def test_a_pause_after_a_fault_spares_matches_but_not_a_clear() -> None:
    """Whoever flushes the cache by hand must not be refused because a match was slow."""
    server, servicer = grpc.aio.server(), _FaultyMatch()  # type: ignore[abstract]
    hicache_pb2_grpc.add_HiCacheServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with channel(HostPort(host="127.0.0.1", port=port)) as to_server:
            client = HiCacheClient(to_server)
            for _ in range(3):
                assert await client.match((bytes(32),)) == (0, None)
            assert servicer.num_matches == 1
            assert await client.clear() == 3
            assert client.fault == ""
    finally:
        await server.stop(0)
