"""Reads pages back from Redis and checks every value; broken pages leave the index, then Redis."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

import structlog

from chunkmesh.coverage import layer_ranges
from chunkmesh.store_thread import StoreThread
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.cache import PrefixCache
from hicache.page_values import read_values
from hicache.watcher import RedisWatcher

_TELL_S = 0.5
"""Time between two messages."""
_TELL_DIGESTS = 100
"""Bad pages that a message tells at most."""

_log = structlog.get_logger(__name__)


class Verification:
    """One check of chosen pages."""

    def __init__(
        self,
        digests: Sequence[bytes],
        *,
        cache: PrefixCache,
        bulk: StoreThread,
        watcher: RedisWatcher,
        dry_run: bool,
    ) -> None:
        """Take pages, parents before children, and a connection for long reads."""
        self.said = pb.VerifyResponse(num_pages=len(digests))
        """How far it has come; bad_digests are those not told yet."""
        self._digests = digests
        self._cache = cache
        self._bulk = bulk
        self._watcher = watcher
        self._dry_run = dry_run

    async def run(self) -> AsyncGenerator[pb.VerifyResponse, None]:
        """Check page by page; yields the state now and then, and at the end.

        Raises:
            CacheFault: Redis does not answer.
        """
        told_s = time.monotonic()
        for digest in self._digests:
            await self._check(digest)
            self.said.num_checked += 1
            now_s = time.monotonic()
            if len(self.said.bad_digests) >= _TELL_DIGESTS or now_s - told_s >= _TELL_S:
                yield self._take_said()
                told_s = now_s
        yield self._take_said()

    def _take_said(self) -> pb.VerifyResponse:
        said = pb.VerifyResponse()
        said.CopyFrom(self.said)
        self.said.ClearField("bad_digests")
        return said

    async def _check(self, digest: bytes) -> None:
        """Check one page; one that has left the index meanwhile is passed over."""
        num_missing = num_damaged = 0
        layers = layer_list(self._cache.info(digest).layers)
        steps = await self._bulk.call(lambda store: read_values(store, digest, layers))
        while (step := await self._bulk.call(lambda _store: next(steps, None))) is not None:
            self.said.num_bytes += step.num_bytes
            num_missing += step.num_missing
            num_damaged += step.num_damaged
        if not num_missing + num_damaged or not self._cache.info(digest).layers:
            return
        self.said.num_damaged += num_damaged > 0
        self.said.num_missing += num_damaged == 0
        self.said.bad_digests.append(digest)
        _log.warning("bad page", digest=digest.hex(), missing=num_missing, damaged=num_damaged)
        if not self._dry_run:
            self._cache.invalidate([digest])
            self._watcher.unlink_soon()


def layer_list(layers: int) -> list[int]:
    """Return a mask's layers in order."""
    return [layer for first, last in layer_ranges(layers) for layer in range(first, last)]
