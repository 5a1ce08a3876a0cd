"""What admins ask of the index, and how they change it: pins, evictions, quotas, a clear.

Every change is written to the audit log; none is made while Redis is away, which keeps pins and
quotas and has the pages.
"""

from __future__ import annotations

import asyncio
import time

from chunkmesh.errors import CacheFault, InvalidRequest
from chunkmesh.v1 import hicache_pb2 as pb
from hicache import codec
from hicache.audit_log import AuditLog, Deed
from hicache.cache import PrefixCache
from hicache.kept_state import KeptState
from hicache.store_thread import StoreThread
from hicache.watch import ChangeFeed
from hicache.watcher import RedisWatcher

MAX_RUNS = 100_000
_USUAL_RUNS = 1000
MAX_AUDIT_ENTRIES = 10_000
_USUAL_AUDIT_ENTRIES = 100


class AdminService:
    """Answers from the index; only a clear goes through Redis."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        store: StoreThread,
        watcher: RedisWatcher,
        kept: KeptState,
        audit: AuditLog,
        feed: ChangeFeed,
    ) -> None:
        self._cache = cache
        self._store = store
        self._watcher = watcher
        self._kept = kept
        self._audit = audit
        self._feed = feed
        self._clearing = asyncio.Lock()

    def list_namespaces(self) -> pb.ListNamespacesResponse:
        """Describe all namespaces, those of most bytes first."""
        states = self._cache.namespaces()
        return pb.ListNamespacesResponse(namespaces=map(codec.namespace_state, states))

    def list_runs(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        """Describe runs.

        Raises:
            InvalidRequest: a value is out of range, or a prefix names several pages or none.
        """
        namespace = (
            codec.checked([request.namespace], "namespace")[0] if request.namespace else None
        )
        found = self._cache.runs(
            namespace=namespace,
            below=request.below or None,
            max_depth=request.max_depth,
            limit=_limit(request.limit, usual=_USUAL_RUNS, most=MAX_RUNS),
            order=codec.order_of(request.order),
            now_s=time.monotonic(),
        )
        return pb.ListRunsResponse(
            runs=map(codec.run_message, found.runs), num_left_off=found.num_left_off
        )

    async def pin(self, request: pb.PinRequest, peer: str) -> pb.PinResponse:
        """Keep pages, over restarts too.

        Raises:
            CacheFault: Redis does not answer; nothing is changed.
        """
        selection = codec.selection_of(request.selection)
        now_s, ttl_s = time.monotonic(), request.ttl_ms / 1000
        until_s = now_s + ttl_s if ttl_s else None
        if not request.dry_run:
            self._check_redis()
        amount = self._cache.pin(selection, until_s=until_s, now_s=now_s, dry_run=request.dry_run)
        if not request.dry_run:
            await self._kept.save()
            what = f"{codec.selection_text(selection)}, " + (
                f"for {ttl_s:g} s" if ttl_s else "for good"
            )
            await self._note(peer, "Pin", what, amount.num_pages, amount.num_bytes)
        return pb.PinResponse(num_pages=amount.num_pages, num_bytes=amount.num_bytes)

    async def unpin(self, request: pb.UnpinRequest, peer: str) -> pb.UnpinResponse:
        """End pins.

        Raises:
            CacheFault: Redis does not answer; nothing is changed.
        """
        selection = codec.selection_of(request.selection)
        if not request.dry_run:
            self._check_redis()
        amount = self._cache.unpin(selection, now_s=time.monotonic(), dry_run=request.dry_run)
        if not request.dry_run:
            self._watcher.unlink_soon()
            await self._kept.save()
            what = codec.selection_text(selection)
            await self._note(peer, "Unpin", what, amount.num_pages, amount.num_bytes)
        return pb.UnpinResponse(num_pages=amount.num_pages, num_bytes=amount.num_bytes)

    async def evict(self, request: pb.EvictRequest, peer: str) -> pb.EvictResponse:
        """Delete pages from the index now and from Redis soon.

        Raises:
            CacheFault: Redis does not answer; nothing is changed.
        """
        selection = codec.selection_of(request.selection)
        if not request.dry_run:
            self._check_redis()
        gone = self._cache.evict(selection, now_s=time.monotonic(), dry_run=request.dry_run)
        if not request.dry_run:
            self._watcher.unlink_soon()
            what = codec.selection_text(selection)
            await self._note(peer, "Evict", what, gone.num_pages, gone.num_bytes)
        return pb.EvictResponse(
            num_pages=gone.num_pages, num_bytes=gone.num_bytes, num_held_pages=gone.num_held_pages
        )

    async def set_quota(self, request: pb.SetQuotaRequest, peer: str) -> pb.SetQuotaResponse:
        """Bound a namespace, over restarts too.

        Raises:
            CacheFault: Redis does not answer; the quota is as before.
        """
        (namespace,) = codec.checked([request.namespace], "namespace")
        if not request.dry_run:
            self._check_redis()
        gone = self._cache.set_quota(
            namespace, request.max_bytes, now_s=time.monotonic(), dry_run=request.dry_run
        )
        if not request.dry_run:
            self._watcher.unlink_soon()
            await self._kept.save()
            bound = f"{request.max_bytes} bytes" if request.max_bytes else "no quota"
            what = f"namespace {codec.short(namespace)}: {bound}"
            await self._note(peer, "SetQuota", what, gone.num_pages, gone.num_bytes)
        return pb.SetQuotaResponse(num_pages=gone.num_pages, num_bytes=gone.num_bytes)

    async def clear(self, request: pb.ClearRequest, peer: str) -> pb.ClearResponse:
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
                self._feed.cleared(num_pages, num_bytes)
                await self._note(peer, "Clear", "all pages", num_pages, num_bytes)
        return pb.ClearResponse(num_pages=num_pages, num_bytes=num_bytes)

    async def audit_log(self, request: pb.GetAuditLogRequest) -> pb.GetAuditLogResponse:
        """Return what was changed by hand, newest first.

        Raises:
            CacheFault: Redis does not answer.
        """
        limit = _limit(request.limit, usual=_USUAL_AUDIT_ENTRIES, most=MAX_AUDIT_ENTRIES)
        return pb.GetAuditLogResponse(
            entries=[
                pb.AuditEntry(
                    unix_ms=unix_ms,
                    peer=deed.peer,
                    method=deed.method,
                    request=deed.request,
                    num_pages=deed.num_pages,
                    num_bytes=deed.num_bytes,
                )
                for unix_ms, deed in await self._audit.newest(limit)
            ]
        )

    def _check_redis(self) -> None:
        if self._watcher.fault is not None:
            raise CacheFault(self._watcher.fault)

    async def _note(
        self, peer: str, method: str, request: str, num_pages: int, num_bytes: int
    ) -> None:
        await self._audit.record(
            Deed(
                peer=peer, method=method, request=request, num_pages=num_pages, num_bytes=num_bytes
            )
        )


def _limit(asked: int, *, usual: int, most: int) -> int:
    if asked > most:
        raise InvalidRequest(f"{asked}; at most {most} are told", field="limit")
    return asked or usual
