"""Runs what takes minutes before a worker serves on a thread that nobody waits for at the end.

A worker that loads has nothing that others need, so that it may end at any moment; a thread of
asyncio's own would be waited for, whatever signals come.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

from chunkmesh import left_threads

_Result = TypeVar("_Result")


async def unless_stopped(stop: asyncio.Event, work: Callable[[], _Result]) -> _Result | None:
    """Return what work returns or raises on its thread, None if stop was set before.

    Work that was stopped goes on until the process ends; nobody hears of it any more.
    """
    ended: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: handed on, not kept
            ended.set_exception(error)

    ended.set_running_or_notify_cancel()
    thread = threading.Thread(target=run, name="start", daemon=True)
    thread.start()
    done = asyncio.wrap_future(ended)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((done, stopping), return_when=asyncio.FIRST_COMPLETED)
        return done.result() if done.done() else None
    finally:
        left_threads.leave(thread)
        stopping.cancel()
        done.cancel()
