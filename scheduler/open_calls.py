"""The Generate calls that are open: how many there may be, and the end of those that take too long.

A call is open from the moment it arrives until gRPC has sent its status: while it is read, waits
and runs, and while its client has not taken what was sent. Ending one cancels its task, wherever
that stands, which ends its request; then the client is told why. A client that takes nothing hears
it when it reads on: all that is kept for it meanwhile is what gRPC has buffered of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc

from chunkmesh.errors import ChunkMeshError, DeadlineExceeded, Overloaded, SlowReader
from chunkmesh.grpc_options import MAX_MESSAGE_BYTES
from chunkmesh.status import to_status
from scheduler.metrics import show_calls
from scheduler.request_stream import RequestStream
from scheduler.user_shares import OVERLOADED_RETRY_S

MAX_READING_BYTES = 4 * MAX_MESSAGE_BYTES
"""Most bytes of requests that are being read at a time, but for a single one."""
LOOK_S = 0.1
_STATUS_S = 1.0
"""Time for a status to leave; it waits behind messages that the client has not taken."""
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What open calls may be at most."""

    max_calls_per_user: int
    """>= 1."""
    max_calls: int
    """Of all users, >= 1."""
    max_unread_bytes: int | None = None
    """Most bytes that wait for a client that does not read, >= 0; None means no limit."""
    unread_timeout_s: float = 0.0
    """How long a client may leave a message, >= 0; 0 means no limit, as for the next one."""
    request_timeout_s: float = 0.0
    """How long a call may take from its arrival to its end, >= 0."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class OpenCall:
    """One call; compared by identity."""

    context: _Context
    task: asyncio.Task[Any]
    """In which gRPC runs it."""
    user: str
    arrived_s: float
    stream: RequestStream | None = None
    """None while the request is read."""
    error: ChunkMeshError | None = None
    """Why it is ended, if it is."""

    def overdue(self, limits: CallLimits, now_s: float) -> ChunkMeshError | None:
        """Return why it has to end now, if so."""
        limit_s = limits.request_timeout_s
        if limit_s and now_s - self.arrived_s > limit_s:
            return DeadlineExceeded(
                f"the request took longer than {limit_s:g} s, the limit (--request-timeout)"
            )
        limit_s = limits.unread_timeout_s
        offered_s = None if self.stream is None else self.stream.offered_s
        if limit_s and offered_s is not None and now_s - offered_s > limit_s:
            return SlowReader(
                f"a message was not taken for {limit_s:g} s, the limit (--unread-timeout)"
            )
        return None


class OpenCalls:
    """Owner of all open calls of one server."""

    def __init__(self, limits: CallLimits, user_of: Callable[[], str] = lambda: "") -> None:
        """Begin with none; user_of tells in a call's task whose it is."""
        self._limits = limits
        self._user_of = user_of
        self._calls: set[OpenCall] = set()
        self._num_of: Counter[str] = Counter()
        """Calls of each user, those with any."""
        self._reading_bytes = 0
        self._ending: list[OpenCall] = []
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def max_unread_bytes(self) -> int | None:
        """Most bytes that wait for a client that does not read."""
        return self._limits.max_unread_bytes

    def begin(self, context: _Context, arrived_s: float) -> OpenCall:
        """Open the call that the current task runs; it closes with that task.

        Raises:
            Overloaded: there are too many.
        """
        user = self._user_of()
        num_calls, limit = self._num_of.get(user, 0), self._limits.max_calls_per_user
        if num_calls >= limit:
            raise _overloaded(f"{num_calls} requests of this user are open, the limit is {limit}")
        if len(self) >= self._limits.max_calls:
            raise _overloaded(
                f"{len(self)} requests are open, the limit is {self._limits.max_calls}"
            )
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        call = OpenCall(context=context, task=task, user=user, arrived_s=arrived_s)
        self._calls.add(call)
        self._num_of[user] += 1
        task.add_done_callback(lambda _task: self._close(call))
        return call

    @contextlib.contextmanager
    def reading(self, num_bytes: int) -> Iterator[None]:
        """Hold a request's bytes while inside.

        Raises:
            Overloaded: too many are held.
        """
        held = self._reading_bytes
        if held and held + num_bytes > MAX_READING_BYTES:
            raise _overloaded(
                f"prompts of {held} bytes are being read, with this one they would be "
                f"{held + num_bytes}, the limit is {MAX_READING_BYTES}"
            )
        self._reading_bytes += num_bytes
        try:
            yield
        finally:
            self._reading_bytes -= num_bytes

    def end(self, call: OpenCall, error: ChunkMeshError) -> None:
        """End a call soon, with an error; nothing if it is being ended already."""
        if call.error is not None:
            return
        call.error = error
        if call.stream is not None:
            call.stream.give_up(error)
        self._ending.append(call)
        self._wake.set()

    async def run(self) -> None:
        """End what is to be ended, and what takes too long, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
                self._wake.clear()
                self._look(time.monotonic())
                show_calls(len(self), len(asyncio.all_tasks()))
                while self._ending:
                    tasks.create_task(_end(self._ending.pop()))

    def _look(self, now_s: float) -> None:
        """Find those that take too long."""
        for call in self._calls:
            if (error := call.overdue(self._limits, now_s)) is not None:
                self.end(call, error)

    def _close(self, call: OpenCall) -> None:
        self._calls.discard(call)
        self._num_of[call.user] -= 1
        if not self._num_of[call.user]:
            del self._num_of[call.user]


async def _end(call: OpenCall) -> None:
    """Cancel a call's task, then tell the client why, as far as it listens."""
    if call.task.done() or call.error is None:
        return
    call.task.cancel()
    await asyncio.wait([call.task], timeout=_STATUS_S)
    status = to_status(call.error)
    # AbortError is how abort always ends; the others say that the client is gone, or takes nothing.
    with contextlib.suppress(grpc.aio.BaseError, TimeoutError):
        async with asyncio.timeout(_STATUS_S):
            await call.context.abort(status.code, status.message, status.trailing_metadata)


def _overloaded(message: str) -> Overloaded:
    return Overloaded(message, retry_after_s=OVERLOADED_RETRY_S)
