"""The scheduler's calls to HiCache.

Short deadlines, and a pause after a fault, so that a dead cache costs a request nothing. No lease
is forgotten by that: they are given back in a pause, too, and those that come too late at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from chunkmesh.layers import LayerRange
from chunkmesh.pages import Namespace
from chunkmesh.v1 import common_pb2, hicache_pb2_grpc
from chunkmesh.v1 import hicache_pb2 as pb
from scheduler import actions
from scheduler.metrics import count_cache_fault

_log = structlog.get_logger(__name__)
_DEADLINE_S = 0.5
_BACKGROUND_DEADLINE_S = 10.0
"""Of what no request waits for."""
_PAUSE_S = 1.0
_LEASE_MS = 60_000
RENEW_S = _LEASE_MS / 3000
"""Between two renewals of a lease."""
_Answer = TypeVar("_Answer")


class HiCacheClient:
    """Calls one HiCache; every method returns normally whatever happens to it."""

    def __init__(self, channel: Callable[[], grpc.aio.Channel], *, model: str = "") -> None:
        """Ask for the channel at each call, and leave it to others to close.

        Pages are told to be of the named model.
        """
        self._channel = channel
        self._stub_of: tuple[grpc.aio.Channel, hicache_pb2_grpc.HiCacheAsyncStub] | None = None
        self._model = model
        self._paused_until_s = 0.0
        self.fault = ""
        """Why the last call failed; empty if it did not."""
        self._late: set[asyncio.Task[None]] = set()
        """Matches that were given up, at most those of _DEADLINE_S in each pause."""

    async def match(self, digests: tuple[bytes, ...]) -> tuple[int | None, str | None]:
        """Return the number of leading pages stored, None without an answer, and the lease."""
        if self._is_paused():
            return None, None
        request = pb.MatchRequest(digests=digests, lease_ttl_ms=_LEASE_MS)
        call = asyncio.ensure_future(
            self._call(self._stub.Match, request, deadline_s=_BACKGROUND_DEADLINE_S)
        )
        try:
            async with asyncio.timeout(_DEADLINE_S):
                answer = await asyncio.shield(call)
        except TimeoutError:
            self._note_fault("DEADLINE_EXCEEDED", f"no answer to Match within {_DEADLINE_S} s")
            task = asyncio.create_task(self._give_back(call))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return None, None
        if answer is None:
            return None, None
        return min(answer.num_pages, len(digests)), answer.lease_id or None

    async def num_stored(self, digests: tuple[bytes, ...]) -> int | None:
        """Return the number of leading pages stored, None without an answer; no request waits.

        It counts as a use of them.
        """
        if self._is_paused():
            return None
        request = pb.MatchRequest(digests=digests)
        answer = await self._call(self._stub.Match, request, deadline_s=_BACKGROUND_DEADLINE_S)
        return None if answer is None else min(answer.num_pages, len(digests))

    async def release_lease(self, lease_id: str) -> None:
        """Give a lease back, trying at once even after a fault; if that fails it expires."""
        request = pb.ReleaseLeaseRequest(lease_id=lease_id)
        await self._call(self._stub.ReleaseLease, request, deadline_s=_BACKGROUND_DEADLINE_S)

    async def renew(self, lease_ids: Sequence[str]) -> list[str]:
        """Let leases live on; return those that have ended, none if HiCache does not answer."""
        if self._is_paused() or not lease_ids:
            return []
        request = pb.RenewLeasesRequest(lease_ids=lease_ids, lease_ttl_ms=_LEASE_MS)
        answer = await self._call(
            self._stub.RenewLeases, request, deadline_s=_BACKGROUND_DEADLINE_S
        )
        return [] if answer is None else list(answer.ended_ids)

    async def invalidate(self, digests: tuple[bytes, ...]) -> None:
        """Report pages that were found missing or damaged."""
        if not self._is_paused():
            request = pb.InvalidateRequest(digests=digests)
            await self._call(self._stub.Invalidate, request, deadline_s=_BACKGROUND_DEADLINE_S)

    async def commit(
        self,
        action: actions.CommitPages,
        *,
        namespace: Namespace,
        layers: LayerRange,
        model_layers: int,
        page_bytes: int,
    ) -> None:
        """Report pages that a stage has written; if that fails they stay invisible.

        namespace is what the pages depend on, but for their salt.
        """
        if self._is_paused():
            return
        request = pb.CommitRequest(
            namespace=action.namespace,
            pages=[pb.CommittedPage(digest=p.digest, parent=p.parent) for p in action.pages],
            layers=common_pb2.LayerRange(first=layers.first, last=layers.last),
            model_layers=model_layers,
            page_bytes=page_bytes,
            info=pb.NamespaceInfo(
                fingerprint=namespace.fingerprint,
                model=self._model,
                kv_dtype=namespace.kv_dtype,
                page_tokens=namespace.page_tokens,
                rope=namespace.rope,
                adapter=namespace.adapter,
                salted=action.namespace != namespace.digest(),
            ),
        )
        await self._call(self._stub.Commit, request, deadline_s=_BACKGROUND_DEADLINE_S)

    async def current_fault(self) -> str:
        """Ask why nothing can be cached now, Redis included; empty if all is well."""
        if self._is_paused():
            return self.fault
        request = pb.GetStatsRequest()
        stats = await self._call(self._stub.GetStats, request, deadline_s=_DEADLINE_S)
        return self.fault if stats is None else stats.redis_fault

    async def clear(self, asked_by: str) -> int | None:
        """Forget all pages, trying at once even after a fault; None if HiCache did not answer.

        asked_by goes into the audit log.
        """
        self._paused_until_s = 0.0
        answer = await self._call(
            self._stub.Clear, pb.ClearRequest(asked_by=asked_by), deadline_s=10.0
        )
        return None if answer is None else answer.num_pages

    async def close(self) -> None:
        """Give up the matches that are late; their leases expire."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _give_back(self, call: asyncio.Future[pb.MatchResponse | None]) -> None:
        """Wait for a match that nobody waits for any more, and end its lease."""
        answer = await call
        if answer is not None and answer.lease_id:
            await self.release_lease(answer.lease_id)

    async def _call(
        self,
        method: Callable[..., Awaitable[_Answer]],
        request: Message,
        *,
        deadline_s: float,
    ) -> _Answer | None:
        """Call, or return None when that fails."""
        try:
            answer = await method(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            self._note_fault(error.code().name, error.details())
            return None
        if self.fault:
            _log.info("prefix cache answers again")
        self.fault = ""
        return answer

    @property
    def _stub(self) -> hicache_pb2_grpc.HiCacheAsyncStub:
        channel = self._channel()
        if self._stub_of is None or self._stub_of[0] is not channel:
            self._stub_of = (channel, hicache_pb2_grpc.HiCacheStub(channel))
        return self._stub_of[1]

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until_s

    def _note_fault(self, code: str, detail: str | None) -> None:
        """Count a fault and pause."""
        count_cache_fault()
        if not self.fault:
            _log.warning("prefix cache fault", code=code, detail=detail)
        self.fault = f"{code}: {detail}"
        self._paused_until_s = time.monotonic() + _PAUSE_S
