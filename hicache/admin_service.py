"""What admins ask of the index, and how they change it: pins, evictions, quotas, a clear.

Every change is written to the audit log; none is made while Redis is away, which keeps pins and
quotas and has the pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable

from chunkmesh.errors import CacheFault, InvalidRequest
from chunkmesh.store_thread import StoreThread
from chunkmesh.stored_page import StoredPage
from chunkmesh.v1 import hicache_pb2 as pb
from hicache import codec
from hicache.audit_log import AuditLog, Caller
from hicache.cache import PrefixCache
from hicache.change_in_parts import change_in_parts, end_waiting_pins, over_quota
from hicache.change_tally import ChangeTally
from hicache.kept_state import KeptState
from hicache.runs import PickedRuns
from hicache.selection import Everything, Selection
from hicache.slices import in_slices
from hicache.tallies import Amount, Removal
from hicache.watcher import RedisWatcher

MAX_RUNS = 100_000
_USUAL_RUNS = 1000
MAX_AUDIT_ENTRIES = 10_000
_USUAL_AUDIT_ENTRIES = 100
_MOST_TTL_MS = 3650 * 86_400_000
_MOST_BYTES = (1 << 63) - 1


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
        on_cleared: Callable[[int, int], None],
    ) -> None:
        self._cache = cache
        self._store = store
        self._watcher = watcher
        self._kept = kept
        self._audit = audit
        self._on_cleared = on_cleared
        self._clearing = asyncio.Lock()

    def list_namespaces(self) -> pb.ListNamespacesResponse:
        """Describe all namespaces, those of most bytes first."""
        states = self._cache.namespaces()
        return pb.ListNamespacesResponse(namespaces=map(codec.namespace_state, states))

    async def list_runs(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        """Describe runs.

        Raises:
            InvalidRequest: a value is out of range, or a prefix names several pages or none.
        """
        namespace = (
            codec.checked([request.namespace], "namespace")[0] if request.namespace else None
        )
        picked = PickedRuns(
            limit=_limit(request.limit, usual=_USUAL_RUNS, most=MAX_RUNS),
            order=codec.order_of(request.order),
        )
        runs = self._cache.runs(
            namespace=namespace,
            below=request.below or None,
            max_depth=request.max_depth,
            now_s=time.monotonic(),
        )
        async for run in in_slices(runs, lambda run: 1 + run.num_pages):
            picked.add(run)
        reply = pb.ListRunsResponse(num_left_off=picked.num_left_off)
        listed = [run async for run in in_slices(picked.taking())]
        async for run in in_slices(reversed(listed)):
            reply.runs.append(codec.run_message(run))
        return reply

    async def pin(self, request: pb.PinRequest, caller: Caller) -> pb.PinResponse:
        """Keep pages, over restarts too.

        Raises:
            CacheFault: Redis does not answer; nothing is changed.
        """
        selection = codec.selection_of(request.selection)
        if request.ttl_ms > _MOST_TTL_MS:
            raise InvalidRequest(f"{request.ttl_ms}; at most {_MOST_TTL_MS} ms", field="ttl_ms")
        self._check_redis()
        now_s, ttl_s = time.monotonic(), request.ttl_ms / 1000
        until_s = now_s + ttl_s if ttl_s else None

        def pin(part: Selection) -> Amount:
            return self._cache.pin(part, until_s=until_s, now_s=now_s, dry_run=request.dry_run)

        if request.dry_run:
            amount = await change_in_parts(self._cache, selection, pin)
        else:
            how_long = f"for {ttl_s:g} s" if ttl_s else "for good"
            what = f"{codec.selection_text(selection)}, {how_long}"
            async with self._keeping(caller, "Pin", what) as tally:
                amount = await change_in_parts(self._cache, selection, pin)
                tally.add(amount.num_pages, amount.num_bytes)
        return pb.PinResponse(num_pages=amount.num_pages, num_bytes=amount.num_bytes)

    async def unpin(self, request: pb.UnpinRequest, caller: Caller) -> pb.UnpinResponse:
        """End pins.

        Raises:
            CacheFault: Redis does not answer; nothing is changed.
        """
        selection = codec.selection_of(request.selection)
        self._check_redis()
        now_s = time.monotonic()

        def unpin(part: Selection) -> Amount:
            return self._cache.unpin(part, now_s=now_s, dry_run=request.dry_run)

        if request.dry_run:
            amount = await change_in_parts(self._cache, selection, unpin)
        else:
            what = codec.selection_text(selection)
            async with self._keeping(caller, "Unpin", what) as tally:
                amount = await change_in_parts(self._cache, selection, unpin)
                if isinstance(selection, Everything):
                    await end_waiting_pins(self._cache)
                tally.add(amount.num_pages, amount.num_bytes)
        return pb.UnpinResponse(num_pages=amount.num_pages, num_bytes=amount.num_bytes)

    async def evict(self, request: pb.EvictRequest, caller: Caller) -> pb.EvictResponse:
        """Delete pages from the index now and from Redis soon.

        Raises:
            CacheFault: Redis does not answer; nothing is changed.
        """
        selection = codec.selection_of(request.selection)
        self._check_redis()
        reply = pb.EvictResponse()

        def evict(part: Selection) -> Removal:
            now_s = time.monotonic()
            gone = self._cache.evict(part, now_s=now_s, dry_run=request.dry_run, would_go=would_go)
            reply.num_held_pages += gone.num_held_pages
            tally.add(gone.num_pages, gone.num_bytes)
            return gone

        would_go = Counter[bytes]() if request.dry_run else None
        if request.dry_run:
            tally = ChangeTally()
            await change_in_parts(self._cache, selection, evict)
        else:
            async with self._changing(caller, "Evict", codec.selection_text(selection)) as tally:
                await change_in_parts(self._cache, selection, evict)
        reply.num_pages, reply.num_bytes = tally.num_pages, tally.num_bytes
        return reply

    async def set_quota(self, request: pb.SetQuotaRequest, caller: Caller) -> pb.SetQuotaResponse:
        """Bound a namespace, over restarts too.

        Raises:
            CacheFault: Redis does not answer; the quota and the pages are as before.
        """
        (namespace,) = codec.checked([request.namespace], "namespace")
        max_bytes = request.max_bytes
        if max_bytes > _MOST_BYTES:
            raise InvalidRequest(f"{max_bytes}; at most {_MOST_BYTES} bytes", field="max_bytes")
        self._check_redis()
        going = await over_quota(self._cache, namespace, max_bytes)
        if not request.dry_run:
            bound = f"{max_bytes} bytes" if max_bytes else "no quota"
            what = f"namespace {codec.short(namespace)}: {bound}"
            async with self._changing(caller, "SetQuota", what) as tally:
                await self._kept.save_quota(namespace, max_bytes)
                self._cache.set_quota(namespace, max_bytes, now_s=time.monotonic())
                tally.add(going.num_pages, going.num_bytes)
        return pb.SetQuotaResponse(num_pages=going.num_pages, num_bytes=going.num_bytes)

    async def clear(self, request: pb.ClearRequest, caller: Caller) -> pb.ClearResponse:
        """Count, and unless dry_run delete, what is in Redis.

        Raises:
            CacheFault: Redis does not answer; what is left there is looked for again.
        """
        self._check_redis()
        async with self._clearing:
            tally = await self._count() if request.dry_run else await self._delete_all(caller)
        return pb.ClearResponse(num_pages=tally.num_pages, num_bytes=tally.num_bytes)

    async def _count(self) -> ChangeTally:
        tally = ChangeTally()
        async for batch in self._store.scan():
            tally.add(len(batch), _num_bytes(batch))
        return tally

    async def _delete_all(self, caller: Caller) -> ChangeTally:
        self._cache.forget()
        is_done = False
        try:
            async with self._changing(caller, "Clear", "all pages") as tally:
                async for batch in self._store.scan():
                    digests = [page.digest for page in batch]
                    num_pages = await self._store.unlink(digests)
                    tally.add(num_pages, _num_bytes(batch) * num_pages // max(1, len(batch)))
                self._cache.forget()
                is_done = True
        finally:
            if not is_done:
                self._watcher.rebuild_soon()
        self._on_cleared(tally.num_pages, tally.num_bytes)
        return tally

    async def audit_log(self, request: pb.GetAuditLogRequest) -> pb.GetAuditLogResponse:
        """Return what was changed by hand, newest first.

        Raises:
            CacheFault: Redis does not answer.
        """
        limit = _limit(request.limit, usual=_USUAL_AUDIT_ENTRIES, most=MAX_AUDIT_ENTRIES)
        return pb.GetAuditLogResponse(
            entries=[codec.audit_entry(*each) for each in await self._audit.newest(limit)]
        )

    @contextlib.asynccontextmanager
    async def _changing(
        self, caller: Caller, method: str, request: str
    ) -> AsyncIterator[ChangeTally]:
        """Make a change inside and count it; it is written to the audit log on leaving.

        So is one that Redis did not let through, and one whose caller went after it was made.

        Raises:
            CacheFault: Redis is away.
        """
        self._check_redis()
        tally = ChangeTally()
        try:
            yield tally
        except asyncio.CancelledError:
            if tally.is_made:  # the caller went, the change stays
                await self._audit.record(tally.deed(caller, method, request))
            raise
        except CacheFault as error:
            await self._audit.record(tally.deed(caller, method, f"{request}: failed, {error}"))
            raise
        self._watcher.unlink_soon()
        await self._audit.record(tally.deed(caller, method, request))

    def _check_redis(self) -> None:
        """Refuse what could not be done: a dry run that promises it would be wrong."""
        if self._watcher.fault is not None:
            raise CacheFault(self._watcher.fault)

    @contextlib.asynccontextmanager
    async def _keeping(
        self, caller: Caller, method: str, request: str
    ) -> AsyncIterator[ChangeTally]:
        """Make a change inside that outlives restarts, or none if Redis does not take it.

        Raises:
            CacheFault: Redis does not answer.
        """
        async with self._changing(caller, method, request) as tally:
            try:
                async with self._kept.changing():
                    yield tally
            except CacheFault:
                tally.undo()
                raise


def _num_bytes(pages: Iterable[StoredPage]) -> int:
    return sum(page.coverage.num_bytes for page in pages if page.coverage)


def _limit(asked: int, *, usual: int, most: int) -> int:
    if asked > most:
        raise InvalidRequest(f"{asked}; at most {most} are told", field="limit")
    return asked or usual
