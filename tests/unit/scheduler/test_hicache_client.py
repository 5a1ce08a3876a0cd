"""The scheduler's calls to HiCache, against a server that fails on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from chunkmesh.address import HostPort
from chunkmesh.grpc_client import channel
from chunkmesh.layers import LayerRange
from chunkmesh.pages import Namespace
from chunkmesh.v1 import hicache_pb2 as pb
from chunkmesh.v1 import hicache_pb2_grpc
from scheduler.actions import CommitPages
from scheduler.hicache_client import RENEW_S, HiCacheClient


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


class _SlowMatch(hicache_pb2_grpc.HiCacheServicer):
    """Answers Match when it is told to; notes which leases come back."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.released: asyncio.Queue[str] = asyncio.Queue()

    async def Match(
        self, _request: pb.MatchRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.MatchResponse:
        await self.may_answer.wait()
        return pb.MatchResponse(num_pages=1, lease_id="late")

    async def ReleaseLease(
        self, request: pb.ReleaseLeaseRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ReleaseLeaseResponse:
        self.released.put_nowait(request.lease_id)
        return pb.ReleaseLeaseResponse()


@contextlib.asynccontextmanager
async def client_of(
    servicer: hicache_pb2_grpc.HiCacheServicer, *, model: str = ""
) -> AsyncIterator[HiCacheClient]:
    """Serve and connect."""
    server = grpc.aio.server()
    hicache_pb2_grpc.add_HiCacheServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with channel(HostPort(host="127.0.0.1", port=port)) as to_server:
            client = HiCacheClient(lambda: to_server, model=model)
            yield client
            await client.close()
    finally:
        await server.stop(0)


async def test_a_pause_after_a_fault_spares_matches_but_not_a_clear() -> None:
    """Whoever flushes the cache by hand must not be refused because a match was slow."""
    servicer = _FaultyMatch()  # type: ignore[abstract]
    async with client_of(servicer) as client:
        for _ in range(3):
            assert await client.match((bytes(32),)) == (None, None)
        assert servicer.num_matches == 1
        assert await client.clear("ops") == 3
        assert client.fault == ""


async def test_a_lease_is_given_back_in_the_pause_after_a_fault() -> None:
    """One late answer pauses matches for a second; leases that end then must not stay for 60 s."""
    servicer = _SlowMatch()  # type: ignore[abstract]
    async with asyncio.timeout(60), client_of(servicer) as client:
        assert await client.match((bytes(32),)) == (None, None)
        assert client.fault == "DEADLINE_EXCEEDED: no answer to Match within 0.5 s"
        await client.release_lease("lease-1")
        assert await servicer.released.get() == "lease-1"


async def test_the_lease_of_a_match_that_came_too_late_is_given_back() -> None:
    """The request went on without it, and nobody else knows that there is one."""
    servicer = _SlowMatch()  # type: ignore[abstract]
    async with asyncio.timeout(60), client_of(servicer) as client:
        assert await client.match((bytes(32),)) == (None, None)
        servicer.may_answer.set()
        assert await servicer.released.get() == "late"


async def test_closing_waits_for_no_late_match() -> None:
    """A cache that hangs must not hold up the end of the scheduler."""
    servicer = _SlowMatch()  # type: ignore[abstract]
    async with asyncio.timeout(60), client_of(servicer) as client:
        assert await client.match((bytes(32),)) == (None, None)
        await client.close()
        assert not client._late


class _NotedMatch(hicache_pb2_grpc.HiCacheServicer):
    """Notes what it is asked for, and has one page of everything."""

    def __init__(self) -> None:
        self.asked: list[pb.MatchRequest] = []

    async def Match(
        self, request: pb.MatchRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.MatchResponse:
        self.asked.append(request)
        return pb.MatchResponse(num_pages=1)


async def test_what_nobody_waits_for_is_asked_without_a_lease() -> None:
    """A lease on pages that nobody reads would only keep them from eviction."""
    servicer = _NotedMatch()  # type: ignore[abstract]
    async with client_of(servicer) as client:
        assert await client.num_stored((bytes(32), b"d" * 32)) == 1
    assert servicer.asked == [pb.MatchRequest(digests=(bytes(32), b"d" * 32))]


async def test_what_is_stored_is_unknown_while_the_cache_fails() -> None:
    """A cache that is away has lost nothing, and is not asked in the pause."""
    servicer = _FaultyMatch()  # type: ignore[abstract]
    async with client_of(servicer) as client:
        for _ in range(3):
            assert await client.num_stored((bytes(32),)) is None
    assert servicer.num_matches == 1


class _NotedCommits(hicache_pb2_grpc.HiCacheServicer):
    """Keeps what is committed."""

    def __init__(self) -> None:
        self.commits: list[pb.CommitRequest] = []

    async def Commit(
        self, request: pb.CommitRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CommitResponse:
        self.commits.append(request)
        return pb.CommitResponse()


@pytest.mark.parametrize("secret", [b"", b"a server's secret"], ids=["no secret", "a secret"])
async def test_a_commit_says_what_its_namespace_stands_for(secret: bytes) -> None:
    """O17: an admin reads whose pages they are; a salt shows as such, never its text."""
    namespace = Namespace(
        fingerprint=b"f" * 32, kv_dtype="float32", page_tokens=16, rope="r", secret=secret
    )
    servicer = _NotedCommits()  # type: ignore[abstract]
    async with client_of(servicer, model="tiny") as client:
        for salt in ("", "secret"):
            await client.commit(
                CommitPages(
                    epoch=1, stage=0, namespace=namespace.digest(cache_salt=salt), pages=()
                ),
                namespace=namespace,
                layers=LayerRange(first=0, last=2),
                model_layers=2,
                page_bytes=64,
            )
    plain, salted = servicer.commits
    told = pb.NamespaceInfo(
        fingerprint=b"f" * 32, model="tiny", kv_dtype="float32", page_tokens=16, rope="r"
    )
    assert told == plain.info
    told.salted = True
    assert told == salted.info
    assert b"secret" not in salted.SerializeToString()


class _SlowCommit(hicache_pb2_grpc.HiCacheServicer):
    """Takes longer for a commit than a request would wait."""

    async def Commit(
        self, _request: pb.CommitRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CommitResponse:
        await asyncio.sleep(0.7)
        return pb.CommitResponse()


async def test_a_commit_may_take_its_time() -> None:
    """No request waits for it, and pages whose commit is given up stay invisible."""
    servicer = _SlowCommit()  # type: ignore[abstract]
    async with client_of(servicer) as client:
        await client.commit(
            CommitPages(epoch=1, stage=0, namespace=bytes(32), pages=()),
            namespace=Namespace(
                fingerprint=b"f" * 32, kv_dtype="float32", page_tokens=16, rope="r", secret=b""
            ),
            layers=LayerRange(first=0, last=2),
            model_layers=2,
            page_bytes=64,
        )
        assert client.fault == ""


class _Leases(hicache_pb2_grpc.HiCacheServicer):
    """Renews leases; those called old have ended."""

    def __init__(self) -> None:
        self.ttls_ms: list[int] = []

    async def RenewLeases(
        self, request: pb.RenewLeasesRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RenewLeasesResponse:
        self.ttls_ms.append(request.lease_ttl_ms)
        ended = [each for each in request.lease_ids if each.startswith("old")]
        return pb.RenewLeasesResponse(ended_ids=ended)


async def test_leases_are_renewed_and_ended_ones_told() -> None:
    """A load may take longer than a lease."""
    servicer = _Leases()  # type: ignore[abstract]
    async with client_of(servicer) as client:
        assert await client.renew(["a", "old b"]) == ["old b"]
        assert await client.renew([]) == []
    assert servicer.ttls_ms == [3000 * RENEW_S]


async def test_a_server_that_cannot_renew_is_no_failed_request() -> None:
    """An older HiCache answers UNIMPLEMENTED: the lease just ends."""
    async with client_of(_FaultyMatch()) as client:  # type: ignore[abstract]
        assert await client.renew(["a"]) == []
