"""What goes through pages' bytes: verify, export and import. Long, so on a connection of its own.

One page at a time and at most 4 MiB of it in one step, so that the loop and Redis stay free for
requests; only a page that comes in is held whole until it is checked.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator

from chunkmesh.errors import CacheFault, InvalidRequest
from chunkmesh.store_thread import StoreThread
from chunkmesh.v1 import hicache_pb2 as pb
from hicache import codec
from hicache.audit_log import AuditLog, Caller, Deed
from hicache.cache import PrefixCache
from hicache.page_import import ArrivingPage, PageImport
from hicache.page_values import read_values
from hicache.slices import found_in_slices
from hicache.verify import Verification, layer_list
from hicache.watcher import RedisWatcher


class BulkService:
    """Reads and writes pages for admins."""

    def __init__(
        self, *, cache: PrefixCache, bulk: StoreThread, watcher: RedisWatcher, audit: AuditLog
    ) -> None:
        """Take a connection for long reads and writes."""
        self._cache = cache
        self._bulk = bulk
        self._watcher = watcher
        self._audit = audit

    async def verify(
        self, request: pb.VerifyRequest, caller: Caller
    ) -> AsyncGenerator[pb.VerifyResponse, None]:
        """Check chosen pages, and forget bad ones unless dry_run.

        Raises:
            CacheFault: Redis does not answer.
        """
        selection = codec.selection_of(request.selection)
        self._check_redis()
        chosen = self._cache.selecting(selection, now_s=time.monotonic())
        check = Verification(
            [digest async for digest in found_in_slices(chosen)],
            cache=self._cache,
            bulk=self._bulk,
            watcher=self._watcher,
            dry_run=request.dry_run,
        )
        is_whole = False
        try:
            async for said in check.run():
                yield said
            is_whole = True
        finally:
            num_bad = check.said.num_missing + check.said.num_damaged
            if not request.dry_run and (is_whole or num_bad):
                what = f"{codec.selection_text(selection)}: {check.said.num_checked} pages checked"
                await self._record(caller, "Verify", what, num_bad, is_whole=is_whole)

    async def export(self, request: pb.ExportRequest) -> AsyncGenerator[pb.ExportResponse, None]:
        """Send the sound values of chosen pages.

        Raises:
            CacheFault: Redis does not answer.
        """
        selection = codec.selection_of(request.selection)
        self._check_redis()
        chosen = self._cache.selecting(selection, now_s=time.monotonic())
        async for digest in found_in_slices(chosen):
            layers = layer_list(self._cache.info(digest).layers)
            if not layers:
                continue
            steps = await self._bulk.call(
                lambda store, digest=digest, layers=layers: read_values(store, digest, layers)  # type: ignore[misc]
            )
            while (
                step := await self._bulk.call(lambda _store, steps=steps: next(steps, None))  # type: ignore[misc]
            ) is not None:
                if step.sound:
                    fields = [pb.PageField(name=name, value=value) for name, value in step.sound]
                    yield pb.ExportResponse(digest=digest, fields=fields)

    async def take_in(
        self, parts: AsyncIterator[pb.ImportRequest], caller: Caller
    ) -> pb.ImportResponse:
        """Write pages that come in parts, each checked; what is there stays.

        Raises:
            InvalidRequest: a digest has the wrong length.
            CacheFault: Redis does not answer; pages before are written.
        """
        self._check_redis()
        importing = PageImport(cache=self._cache, bulk=self._bulk)
        is_whole = False
        try:
            await _take_all(parts, importing)
            is_whole = True
        finally:
            counts = importing.counts
            if not importing.dry_run and (is_whole or counts.num_pages):
                what = f"{counts.num_known} pages known, {counts.num_refused} refused"
                await self._record(
                    caller, "Import", what, counts.num_pages, counts.num_bytes, is_whole=is_whole
                )
        self._watcher.unlink_soon()
        return counts

    async def _record(
        self,
        caller: Caller,
        method: str,
        request: str,
        num_pages: int,
        num_bytes: int = 0,
        *,
        is_whole: bool,
    ) -> None:
        """Write what was done to the audit log; also if the caller went or Redis failed midway."""
        await self._audit.record(
            Deed(
                peer=caller.peer,
                caller=caller.name,
                method=method,
                request=request if is_whole else f"{request}, then broken off",
                num_pages=num_pages,
                num_bytes=num_bytes,
            )
        )

    def _check_redis(self) -> None:
        if self._watcher.fault is not None:
            raise CacheFault(self._watcher.fault)


async def _take_all(parts: AsyncIterator[pb.ImportRequest], importing: PageImport) -> None:
    """Put parts together to pages and take them.

    Raises:
        InvalidRequest: a digest has the wrong length, or nothing came.
        CacheFault: Redis does not answer.
    """
    page: ArrivingPage | None = None
    async for part in parts:
        (digest,) = codec.checked([part.digest], "digest")
        if page is None or page.digest != digest:
            if page is None:
                importing.dry_run = part.dry_run
            else:
                await importing.take(page)
            page = ArrivingPage(digest)
        page.add(part.fields)
    if page is None:
        raise InvalidRequest("nothing came to be imported", field="digest")
    await importing.take(page)
