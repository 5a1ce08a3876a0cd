"""The scheduler's calls to HiCache.

Short deadlines, and a pause after a fault, so that a dead cache costs a request nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from chunkmesh.layers import LayerRange
from chunkmesh.v1 import common_pb2, hicache_pb2_grpc
from chunkmesh.v1 import hicache_pb2 as pb
from scheduler import actions
from scheduler.metrics import count_cache_fault

_log = structlog.get_logger(__name__)
_DEADLINE_S = 0.5
_PAUSE_S = 1.0
_LEASE_MS = 60_000
_Answer = TypeVar("_Answer")


class HiCacheClient:
    """Calls one HiCache; every method returns normally whatever happens to it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use a channel that somebody else closes."""
        self._stub = hicache_pb2_grpc.HiCacheStub(channel)
        self._paused_until_s = 0.0
        self.fault = ""
        """Why the last call failed; empty if it did not."""

    async def match(self, digests: tuple[bytes, ...]) -> tuple[int, str | None]:
        """Return the number of leading pages stored and the lease on them."""
        request = pb.MatchRequest(digests=digests, lease_ttl_ms=_LEASE_MS)
        answer = await self._call(self._stub.Match, request)
        if answer is None:
            return 0, None
        return min(answer.num_pages, len(digests)), answer.lease_id or None

    async def release_lease(self, lease_id: str) -> None:
        """Give a lease back; if that fails it expires."""
        await self._call(self._stub.ReleaseLease, pb.ReleaseLeaseRequest(lease_id=lease_id))

    async def invalidate(self, digests: tuple[bytes, ...]) -> None:
        """Report pages that were found missing or damaged."""
        await self._call(self._stub.Invalidate, pb.InvalidateRequest(digests=digests))

    async def commit(
        self,
        action: actions.CommitPages,
        *,
        layers: LayerRange,
        model_layers: int,
        page_bytes: int,
    ) -> None:
        """Report pages that a stage has written; if that fails they stay invisible."""
        request = pb.CommitRequest(
            namespace=action.namespace,
            pages=[pb.CommittedPage(digest=p.digest, parent=p.parent) for p in action.pages],
            layers=common_pb2.LayerRange(first=layers.first, last=layers.last),
            model_layers=model_layers,
            page_bytes=page_bytes,
        )
        await self._call(self._stub.Commit, request)

    async def current_fault(self) -> str:
        """Ask why nothing can be cached now, Redis included; empty if all is well."""
        stats = await self._call(self._stub.GetStats, pb.GetStatsRequest())
        return self.fault if stats is None else stats.redis_fault

    async def clear(self) -> int | None:
        """Forget all pages, trying at once even after a fault; None if HiCache did not answer."""
        self._paused_until_s = 0.0
        answer = await self._call(self._stub.Clear, pb.ClearRequest(), deadline_s=10.0)
        return None if answer is None else answer.num_pages

    async def _call(
        self,
        method: Callable[..., Awaitable[_Answer]],
        request: Message,
        deadline_s: float = _DEADLINE_S,
    ) -> _Answer | None:
        """Call, or return None while HiCache is paused or when it fails."""
        if time.monotonic() < self._paused_until_s:
            return None
        try:
            answer = await method(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            count_cache_fault()
            if not self.fault:
                _log.warning("prefix cache fault", code=error.code().name, detail=error.details())
            self.fault = f"{error.code().name}: {error.details()}"
            self._paused_until_s = time.monotonic() + _PAUSE_S
            return None
        if self.fault:
            _log.info("prefix cache answers again")
        self.fault = ""
        return answer
