"""Sends the requests of a benchmark when they are due, and takes down when what comes back.

One event loop, several connections: a single one would make many streams wait for each other.
Times are taken as soon as the loop hands a message over. How late the loop itself is, is measured
beside, for that is the client's share.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import grpc

from chunkmesh.address import HostPort
from chunkmesh.bench.client_lag import ClientLag
from chunkmesh.bench.record import RequestRecord
from chunkmesh.bench.request_log import RequestLog
from chunkmesh.errors import Unavailable
from chunkmesh.grpc_client import channel
from chunkmesh.retrying import Attempts, Servers
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc

_REQUESTS_PER_CHANNEL = 32
_MAX_CHANNELS = 16
_TICK_S = 0.01
_CONNECT_TIMEOUT_S = 10.0
_Stubs: TypeAlias = "Mapping[HostPort, Sequence[generation_pb2_grpc.GenerationAsyncStub]]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What is sent, and when."""

    requests: Sequence[pb.GenerateRequest]
    due_s: Sequence[float]
    """Since the begin, ascending; as long as requests."""
    max_concurrency: int | None = None
    """Most requests that run at a time, >= 1; others wait for their turn."""
    duration_s: float | None = None
    """When the run is cut short."""
    request_timeout_s: float
    """Of one request."""

    @property
    def num_channels(self) -> int:
        """Connections, by how many requests may run at a time."""
        most = min(len(self.requests), self.max_concurrency or len(self.requests))
        return min(_MAX_CHANNELS, max(1, math.ceil(most / _REQUESTS_PER_CHANNEL)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What came of a plan."""

    records: tuple[RequestRecord, ...]
    """One a request, in order."""
    end: Literal["complete", "duration", "interrupted"]
    duration_s: float
    """From the begin to the end of the last request, or to the cut."""
    lag: ClientLag


class Load:
    """Plays one plan, once."""

    def __init__(
        self, servers: Servers, plan: LoadPlan, on_end: Callable[[int], None] = lambda _: None
    ) -> None:
        """on_end is called with how many requests have ended, after each."""
        self._servers = servers
        self._plan = plan
        self._on_end = on_end
        self._begin_s = 0.0
        self._num_ended = 0
        self._logs = [RequestLog(index, float(due)) for index, due in enumerate(plan.due_s)]
        self._turns = asyncio.Semaphore(plan.max_concurrency or max(1, len(plan.requests)))
        self._lateness_s: list[float] = []
        self._loop_lags_s: list[float] = []

    async def play(self) -> LoadResult:
        """Send everything and wait for the ends; a cancellation ends the run, and is taken for it.

        Requests that run when the run is cut short are cancelled, on every stage.

        Raises:
            Unavailable: the server takes no connection.
        """
        end: Literal["complete", "duration", "interrupted"] = "complete"
        async with contextlib.AsyncExitStack() as stack:
            channels = {
                server: [
                    await stack.enter_async_context(channel(server, self._servers.access))
                    for _ in range(self._plan.num_channels)
                ]
                for server in self._servers.addresses
            }
            await self._connect(channels)
            stubs = {
                server: [generation_pb2_grpc.GenerationStub(each) for each in its_channels]
                for server, its_channels in channels.items()
            }
            cpu_begin_s = time.process_time()
            self._begin_s = time.perf_counter()
            try:
                async with asyncio.timeout(self._plan.duration_s):
                    await self._send_all(stubs)
            except TimeoutError:
                end = "duration"
            except asyncio.CancelledError:
                end = "interrupted"
                _take_back_cancellation()
            duration_s = self._now_s()
            cpu_share = (time.process_time() - cpu_begin_s) / duration_s
        return LoadResult(
            records=tuple(log.record() for log in self._logs),
            end=end,
            duration_s=duration_s,
            lag=ClientLag.of(self._loop_lags_s, self._lateness_s, cpu_share=cpu_share),
        )

    async def _connect(self, channels: Mapping[HostPort, Sequence[grpc.aio.Channel]]) -> None:
        """Connect now, to one server at least, so that no request waits for it."""
        connecting = [asyncio.create_task(_connected(each)) for each in channels.values()]
        try:
            done, _ = await asyncio.wait(
                connecting, timeout=_CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in connecting:
                each.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)
        if not done:
            names = ", ".join(map(str, channels))
            raise Unavailable(f"{names} takes no connection within {_CONNECT_TIMEOUT_S:g} s")

    async def _send_all(self, stubs: _Stubs) -> None:
        """Begin each request when it is due."""
        is_schedule = bool(self._plan.due_s) and self._plan.due_s[-1] > 0
        ticks = asyncio.create_task(self._watch_loop())
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, request in enumerate(self._plan.requests):
                    due_s = float(self._plan.due_s[index])
                    if (wait_s := due_s - self._now_s()) > 0:
                        await asyncio.sleep(wait_s)
                    if is_schedule:
                        self._lateness_s.append(self._now_s() - due_s)
                    tasks.create_task(self._run(stubs, request, self._logs[index]))
        finally:
            ticks.cancel()

    async def _run(self, stubs: _Stubs, request: pb.GenerateRequest, log: RequestLog) -> None:
        """Run one request to its end, when it is its turn."""
        async with self._turns:
            log.sent(self._now_s())
            attempts = self._servers.begin(num_outputs=1)
            while True:
                its_stubs = stubs[attempts.server]
                pause_s = await self._try(
                    its_stubs[log.index % len(its_stubs)], request, log, attempts
                )
                if pause_s is None:
                    break
                log.retried()
                await asyncio.sleep(pause_s)
        self._num_ended += 1
        self._on_end(self._num_ended)

    async def _try(
        self,
        stub: generation_pb2_grpc.GenerationAsyncStub,
        request: pb.GenerateRequest,
        log: RequestLog,
        attempts: Attempts,
    ) -> float | None:
        """Run one request once; return how long to wait before it is sent again, if it is."""
        call = stub.Generate(
            request,
            timeout=self._plan.request_timeout_s,
            metadata=grpc.aio.Metadata(*self._servers.access.metadata),
        )
        try:
            async for response in call:
                attempts.heard(response)
                log.arrived(response, self._now_s())
        except grpc.aio.AioRpcError as error:
            if not attempts.has_all():
                pause_s = attempts.pause_s(error)
                if pause_s is None:
                    log.failed(error.code().name, error.details() or "")
                return pause_s
        attempts.answered()
        log.ended()
        return None

    async def _watch_loop(self) -> None:
        """Measure how late the loop is, until cancelled."""
        while True:
            due_s = self._now_s() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._loop_lags_s.append(max(0.0, self._now_s() - due_s))

    def _now_s(self) -> float:
        return time.perf_counter() - self._begin_s


def _take_back_cancellation() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


async def _connected(channels: Sequence[grpc.aio.Channel]) -> None:
    for each in channels:
        await each.channel_ready()
