"""Calls at the door: how many, how many bytes, and the end of those that take too long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest

from chunkmesh.errors import DeadlineExceeded, Overloaded, SlowReader
from scheduler.open_calls import MAX_READING_BYTES, CallLimits, OpenCall, OpenCalls
from scheduler.request_stream import RequestStream


class FakeContext:
    """Takes a status; where the client takes nothing it never leaves."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.statuses: list[grpc.StatusCode] = []
        self._is_stuck = is_stuck

    async def abort(self, code: grpc.StatusCode, _message: str, _metadata: object) -> None:
        """End the call as gRPC does."""
        if self._is_stuck:
            await asyncio.sleep(60)
        self.statuses.append(code)
        raise grpc.aio.AbortError("Locally aborted.")


def limits(**more: Any) -> CallLimits:
    """Return limits that nothing reaches but what is given."""
    return CallLimits(**({"max_calls_per_user": 10, "max_calls": 20} | more))


class Door:
    """Open calls in tasks of their own."""

    def __init__(self, given: CallLimits) -> None:
        self.calls = OpenCalls(given, user_of=lambda: self.user)
        self.user = ""
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, arrived_s: float = 0.0, *, is_stuck: bool = False) -> OpenCall:
        """Open a call that waits for ever."""
        opened: asyncio.Future[OpenCall] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                context: Any = FakeContext(is_stuck=is_stuck)
                opened.set_result(self.calls.begin(context, arrived_s))
            except Overloaded as error:
                opened.set_exception(error)
                return
            await asyncio.sleep(60)

        self.tasks.append(asyncio.create_task(run()))
        return await opened


@contextlib.asynccontextmanager
async def door(given: CallLimits) -> AsyncIterator[Door]:
    """Run a door while inside."""
    opened = Door(given)
    watch = asyncio.create_task(opened.calls.run())
    yield opened
    for task in (watch, *opened.tasks):
        task.cancel()
    await asyncio.gather(watch, *opened.tasks, return_exceptions=True)


def statuses(call: OpenCall) -> list[grpc.StatusCode]:
    """Return what the client was told."""
    return cast("FakeContext", call.context).statuses


async def closed(opened: Door) -> None:
    """Wait until no call is open."""
    async with asyncio.timeout(10):
        while len(opened.calls):
            await asyncio.sleep(0.005)


async def test_calls_are_bounded_for_one_user_and_for_all() -> None:
    """The refusal says which limit; a call that has closed makes room."""
    async with door(limits(max_calls_per_user=2, max_calls=3)) as opened:
        first, _ = await opened.open(), await opened.open()
        with pytest.raises(Overloaded, match="2 requests of this user are open, the limit is 2"):
            await opened.open()
        opened.user = "b"
        await opened.open()
        with pytest.raises(Overloaded, match="3 requests are open, the limit is 3"):
            await opened.open()
        first.task.cancel()
        await asyncio.wait([first.task])
        await opened.open()
        assert 3 == len(opened.calls)


def test_bytes_that_are_read_are_bounded_but_for_a_single_request() -> None:
    """Threads tokenize them at their own pace, and all are held in memory meanwhile."""
    calls = OpenCalls(limits())
    with calls.reading(MAX_READING_BYTES + 5):
        with (
            pytest.raises(Overloaded, match=f"the limit is {MAX_READING_BYTES}"),
            calls.reading(1),
        ):
            pass
        assert MAX_READING_BYTES + 5 == calls._reading_bytes
    with calls.reading(1):
        assert 1 == calls._reading_bytes


async def test_a_call_that_is_ended_is_cancelled_and_told_why() -> None:
    """Its task may stand anywhere: reading, waiting, or before a message that is not taken."""
    async with door(limits()) as opened:
        call = await opened.open()
        opened.calls.end(call, SlowReader("slow"))
        opened.calls.end(call, DeadlineExceeded("a second reason is too late"))
        await closed(opened)
        assert call.task.cancelled()
        async with asyncio.timeout(5):
            while not statuses(call):
                await asyncio.sleep(0.005)
        assert [grpc.StatusCode.RESOURCE_EXHAUSTED] == statuses(call)


async def test_a_status_that_does_not_leave_holds_nobody_up() -> None:
    """A client that takes nothing takes no status either."""
    async with door(limits()) as opened:
        stuck, other = await opened.open(is_stuck=True), await opened.open()
        for call in (stuck, other):
            opened.calls.end(call, SlowReader("slow"))
        await closed(opened)
        async with asyncio.timeout(5):
            while not statuses(other):
                await asyncio.sleep(0.005)
        assert [] == statuses(stuck)


async def test_a_request_that_takes_too_long_is_ended_while_it_is_read() -> None:
    """Counted from its arrival, before there is anything of it but bytes."""
    async with door(limits(request_timeout_s=0.01)) as opened:
        call = await opened.open(arrived_s=-1e9)
        await closed(opened)
        assert isinstance(call.error, DeadlineExceeded)
        assert "0.01 s, the limit (--request-timeout)" in str(call.error)


@pytest.mark.parametrize(("offered_s", "is_overdue"), [(None, False), (95.0, False), (89.0, True)])
def test_a_message_may_wait_only_so_long(offered_s: float | None, *, is_overdue: bool) -> None:
    """Counted from when it was offered; a request without news may take for ever."""
    stream = RequestStream(prompt_tokens=1, arrived_s=0.0)
    stream.offered_s = offered_s
    any_task: Any = None
    call = OpenCall(context=any_task, task=any_task, user="", arrived_s=0.0, stream=stream)
    error = call.overdue(limits(unread_timeout_s=10.0), now_s=100.0)
    assert is_overdue == isinstance(error, SlowReader)
    assert call.overdue(limits(), now_s=100.0) is None
