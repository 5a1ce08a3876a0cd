"""The HiCache RPCs: what the scheduler needs stands here, what admins need is handed on.

Checks what comes in, asks the cache, and has Redis cleaned up behind it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from chunkmesh.errors import InvalidRequest
from chunkmesh.trust.identity import current_identity
from chunkmesh.v1 import hicache_pb2 as pb
from chunkmesh.v1 import hicache_pb2_grpc
from hicache import codec
from hicache.admin_service import AdminService
from hicache.audit_log import Caller
from hicache.bulk_service import BulkService
from hicache.cache import PrefixCache
from hicache.kept_infos import KeptInfos
from hicache.watch import ChangeFeed
from hicache.watcher import RedisWatcher

_Context = grpc.aio.ServicerContext[Any, Any]

_MAX_NAME = 200
"""Most characters of a caller's name that are kept."""
_log = structlog.get_logger(__name__)


class HiCacheServicer(hicache_pb2_grpc.HiCacheServicer):
    """Answers the scheduler from memory."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        watcher: RedisWatcher,
        infos: KeptInfos,
        feed: ChangeFeed,
        admin: AdminService,
        bulk: BulkService,
    ) -> None:
        self._cache = cache
        self._watcher = watcher
        self._infos = infos
        self._feed = feed
        self._admin = admin
        self._bulk = bulk

    async def Match(self, request: pb.MatchRequest, _context: _Context) -> pb.MatchResponse:
        """Find and lease a prefix; nothing is found while Redis is away."""
        digests = codec.checked(request.digests, "digests")
        if self._watcher.fault is not None:
            self._cache.count_query(len(digests))
            return pb.MatchResponse()
        hit = self._cache.match(
            digests, lease_ttl_s=request.lease_ttl_ms / 1000, now_s=time.monotonic()
        )
        return pb.MatchResponse(num_pages=hit.num_pages, lease_id=hit.lease_id)

    async def ReleaseLease(
        self, request: pb.ReleaseLeaseRequest, _context: _Context
    ) -> pb.ReleaseLeaseResponse:
        """End a lease; one that has ended is no error."""
        self._cache.release(request.lease_id, now_s=time.monotonic())
        self._watcher.unlink_soon()
        return pb.ReleaseLeaseResponse()

    async def RenewLeases(
        self, request: pb.RenewLeasesRequest, _context: _Context
    ) -> pb.RenewLeasesResponse:
        """Let leases live on."""
        if not request.lease_ttl_ms:
            raise InvalidRequest("0 ms; at least 1 is needed", field="lease_ttl_ms")
        ended = self._cache.renew(
            request.lease_ids, ttl_s=request.lease_ttl_ms / 1000, now_s=time.monotonic()
        )
        return pb.RenewLeasesResponse(ended_ids=ended)

    async def Commit(self, request: pb.CommitRequest, _context: _Context) -> pb.CommitResponse:
        """Record stored pages."""
        coverage = codec.coverage_of(request)
        (namespace,) = codec.checked([request.namespace], "namespace")
        codec.checked((page.digest for page in request.pages), "pages.digest")
        codec.checked((page.parent for page in request.pages), "pages.parent")
        if request.HasField("info"):
            self._infos.describe(namespace, codec.info_of(request.info))
        pages = ((page.digest, page.parent, page.priority) for page in request.pages)
        num_visible = self._cache.commit(namespace, pages, coverage, now_s=time.monotonic())
        self._watcher.unlink_soon()
        return pb.CommitResponse(num_visible=num_visible)

    async def Invalidate(
        self, request: pb.InvalidateRequest, _context: _Context
    ) -> pb.InvalidateResponse:
        """Forget pages and what hangs below; Redis is cleaned of them at once."""
        num_pages = self._cache.invalidate(codec.checked(request.digests, "digests"))
        self._watcher.unlink_soon()
        _log.info("pages invalidated", num_named=len(request.digests), num_pages=num_pages)
        return pb.InvalidateResponse(num_pages=num_pages)

    async def Lookup(self, request: pb.LookupRequest, _context: _Context) -> pb.LookupResponse:
        """Describe pages; leaves no trace in hits or in the order of eviction."""
        digests = codec.checked(request.digests, "digests")
        num_matched = 0 if self._watcher.fault is not None else self._cache.peek(digests)
        return pb.LookupResponse(
            pages=[codec.page_state(self._cache.info(digest)) for digest in digests],
            num_matched=num_matched,
        )

    async def GetStats(
        self, _request: pb.GetStatsRequest, _context: _Context
    ) -> pb.GetStatsResponse:
        """Count."""
        cache, counters, server = self._cache, self._cache.counters, self._watcher.server
        return pb.GetStatsResponse(
            num_pages=cache.num_pages,
            num_partial_pages=cache.num_partial_pages,
            num_bytes=cache.num_bytes,
            num_leases=cache.num_leases,
            num_queries=counters.queries,
            num_queried_pages=counters.queried_pages,
            num_hit_pages=counters.hit_pages,
            num_evicted_pages=cache.num_evicted_pages,
            budget_bytes=cache.budget_bytes,
            redis_fault=self._watcher.fault or "",
            redis_version="" if server is None else f"{server.name} {server.version}",
            rebuilding=self._watcher.rebuilding,
        )

    async def Watch(
        self, _request: pb.WatchRequest, _context: _Context
    ) -> AsyncIterator[pb.WatchResponse]:
        """Tell of changes until the caller or the server goes."""
        with self._feed.subscribed() as subscription:
            while (change := await subscription.next()) is not None:
                yield change

    async def ListNamespaces(
        self, _request: pb.ListNamespacesRequest, _context: _Context
    ) -> pb.ListNamespacesResponse:
        """Tell what is cached by namespace."""
        return self._admin.list_namespaces()

    async def ListRuns(
        self, request: pb.ListRunsRequest, _context: _Context
    ) -> pb.ListRunsResponse:
        """Tell what is cached by runs."""
        return await self._admin.list_runs(request)

    async def Pin(self, request: pb.PinRequest, context: _Context) -> pb.PinResponse:
        """Keep pages."""
        return await self._admin.pin(request, _caller(context))

    async def Unpin(self, request: pb.UnpinRequest, context: _Context) -> pb.UnpinResponse:
        """End pins."""
        return await self._admin.unpin(request, _caller(context))

    async def Evict(self, request: pb.EvictRequest, context: _Context) -> pb.EvictResponse:
        """Delete pages."""
        return await self._admin.evict(request, _caller(context))

    async def SetQuota(self, request: pb.SetQuotaRequest, context: _Context) -> pb.SetQuotaResponse:
        """Bound a namespace."""
        return await self._admin.set_quota(request, _caller(context))

    async def Clear(self, request: pb.ClearRequest, context: _Context) -> pb.ClearResponse:
        """Delete all pages."""
        return await self._admin.clear(request, _caller(context, request.asked_by))

    async def GetAuditLog(
        self, request: pb.GetAuditLogRequest, _context: _Context
    ) -> pb.GetAuditLogResponse:
        """Tell what was changed by hand."""
        return await self._admin.audit_log(request)

    async def Verify(
        self, request: pb.VerifyRequest, context: _Context
    ) -> AsyncIterator[pb.VerifyResponse]:
        """Read pages back."""
        async with contextlib.aclosing(self._bulk.verify(request, _caller(context))) as replies:
            async for reply in replies:
                yield reply

    async def Export(
        self, request: pb.ExportRequest, _context: _Context
    ) -> AsyncIterator[pb.ExportResponse]:
        """Send pages."""
        async with contextlib.aclosing(self._bulk.export(request)) as parts:
            async for part in parts:
                yield part

    async def Import(
        self, parts: AsyncIterator[pb.ImportRequest], context: _Context
    ) -> pb.ImportResponse:
        """Take pages."""
        return await self._bulk.take_in(parts, _caller(context))


def _caller(context: _Context, asked_by: str = "") -> Caller:
    """Say who makes a call, and who has asked for it."""
    peer = context.peer()
    names = (current_identity().name or peer, asked_by)
    shown = "".join(
        each if each.isprintable() else "?" for each in " for ".join(filter(None, names))
    )
    return Caller(peer=peer, name=shown[:_MAX_NAME])
