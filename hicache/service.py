"""The HiCache RPCs: checks what comes in, asks the cache, and has Redis cleaned up behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import grpc
import structlog

from chunkmesh.coverage import MAX_MODEL_LAYERS, Coverage, layer_mask, layer_ranges
from chunkmesh.errors import InvalidRequest
from chunkmesh.indexed_page import PageInfo
from chunkmesh.pages import DIGEST_BYTES
from chunkmesh.v1 import common_pb2, hicache_pb2, hicache_pb2_grpc
from hicache.cache import PrefixCache
from hicache.store_thread import StoreThread
from hicache.watcher import RedisWatcher

_Context = grpc.aio.ServicerContext[Any, Any]

_log = structlog.get_logger(__name__)


class HiCacheServicer(hicache_pb2_grpc.HiCacheServicer):
    """Answers from memory; only Clear waits for Redis."""

    def __init__(self, cache: PrefixCache, store: StoreThread, watcher: RedisWatcher) -> None:
        self._cache = cache
        self._store = store
        self._watcher = watcher
        self._clearing = asyncio.Lock()

    async def Match(
        self, request: hicache_pb2.MatchRequest, _context: _Context
    ) -> hicache_pb2.MatchResponse:
        """Find and lease a prefix; nothing is found while Redis is away."""
        digests = _checked(request.digests, "digests")
        if self._watcher.fault is not None:
            self._cache.count_query(len(digests))
            return hicache_pb2.MatchResponse()
        hit = self._cache.match(
            digests, lease_ttl_s=request.lease_ttl_ms / 1000, now_s=time.monotonic()
        )
        return hicache_pb2.MatchResponse(num_pages=hit.num_pages, lease_id=hit.lease_id)

    async def ReleaseLease(
        self, request: hicache_pb2.ReleaseLeaseRequest, _context: _Context
    ) -> hicache_pb2.ReleaseLeaseResponse:
        """End a lease; one that has ended is no error."""
        self._cache.release(request.lease_id, now_s=time.monotonic())
        self._watcher.unlink_soon()
        return hicache_pb2.ReleaseLeaseResponse()

    async def Commit(
        self, request: hicache_pb2.CommitRequest, _context: _Context
    ) -> hicache_pb2.CommitResponse:
        """Record stored pages."""
        coverage = _coverage(request)
        _checked([request.namespace], "namespace")
        _checked((page.digest for page in request.pages), "pages.digest")
        _checked((page.parent for page in request.pages), "pages.parent")
        pages = ((page.digest, page.parent, page.priority) for page in request.pages)
        num_visible = self._cache.commit(request.namespace, pages, coverage, now_s=time.monotonic())
        self._watcher.unlink_soon()
        return hicache_pb2.CommitResponse(num_visible=num_visible)

    async def Invalidate(
        self, request: hicache_pb2.InvalidateRequest, _context: _Context
    ) -> hicache_pb2.InvalidateResponse:
        """Forget pages and what hangs below; Redis is cleaned of them at once."""
        num_pages = self._cache.invalidate(_checked(request.digests, "digests"))
        self._watcher.unlink_soon()
        _log.info("pages invalidated", num_named=len(request.digests), num_pages=num_pages)
        return hicache_pb2.InvalidateResponse(num_pages=num_pages)

    async def Lookup(
        self, request: hicache_pb2.LookupRequest, _context: _Context
    ) -> hicache_pb2.LookupResponse:
        """Describe pages; leaves no trace in hits or in the order of eviction."""
        digests = _checked(request.digests, "digests")
        num_matched = 0 if self._watcher.fault is not None else self._cache.peek(digests)
        return hicache_pb2.LookupResponse(
            pages=[_page_state(self._cache.info(digest)) for digest in digests],
            num_matched=num_matched,
        )

    async def GetStats(
        self, _request: hicache_pb2.GetStatsRequest, _context: _Context
    ) -> hicache_pb2.GetStatsResponse:
        """Count."""
        cache, counters, server = self._cache, self._cache.counters, self._watcher.server
        return hicache_pb2.GetStatsResponse(
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

    async def Clear(
        self, request: hicache_pb2.ClearRequest, _context: _Context
    ) -> hicache_pb2.ClearResponse:
        """Count, and unless dry_run delete, what is in Redis.

        Raises:
            CacheFault: Redis does not answer; the index is forgotten all the same.
        """
        num_pages = num_bytes = 0
        async with self._clearing:
            if not request.dry_run:
                self._cache.forget()
            async for batch in self._store.scan():
                num_bytes += sum(page.coverage.num_bytes for page in batch if page.coverage)
                digests = [page.digest for page in batch]
                num_pages += len(digests) if request.dry_run else await self._store.unlink(digests)
            if not request.dry_run:
                self._cache.forget()
                _log.info("cache cleared", num_pages=num_pages, num_bytes=num_bytes)
        return hicache_pb2.ClearResponse(num_pages=num_pages, num_bytes=num_bytes)


def _checked(digests: Iterable[bytes], field: str) -> list[bytes]:
    checked = list(digests)
    for digest in checked:
        if len(digest) != DIGEST_BYTES:
            raise InvalidRequest(
                f"a digest of {len(digest)} bytes; it must have {DIGEST_BYTES}", field=field
            )
    return checked


def _coverage(request: hicache_pb2.CommitRequest) -> Coverage:
    first, last = request.layers.first, request.layers.last
    model_layers = request.model_layers
    if not 0 < model_layers <= MAX_MODEL_LAYERS:
        raise InvalidRequest(
            f"a model of {model_layers} layers; 1 to {MAX_MODEL_LAYERS} are allowed",
            field="model_layers",
        )
    if not first < last <= model_layers:
        raise InvalidRequest(
            f"layers [{first}, {last}) of a model of {model_layers} layers", field="layers"
        )
    return Coverage(
        layers=layer_mask(first, last),
        model_layers=model_layers,
        layer_bytes=request.page_bytes // (last - first),
    )


def _page_state(info: PageInfo) -> hicache_pb2.PageState:
    return hicache_pb2.PageState(
        layers=[
            common_pb2.LayerRange(first=first, last=last)
            for first, last in layer_ranges(info.layers)
        ],
        visible=info.visible,
        num_hits=info.num_hits,
    )
