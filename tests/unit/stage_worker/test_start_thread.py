"""What takes long before a worker serves, and a stop in between."""

from __future__ import annotations

import asyncio
import threading

import pytest

from chunkmesh import left_threads
from stage_worker.start_thread import unless_stopped
from tests.eventually import eventually


async def test_what_work_returns() -> None:
    """The usual end."""
    assert await unless_stopped(asyncio.Event(), lambda: 3) == 3


async def test_what_work_raises() -> None:
    """A missing weights file has to reach the command line."""

    def fail() -> int:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await unless_stopped(asyncio.Event(), fail)


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_stop_does_not_wait_for_work(*, is_error: bool) -> None:
    """Weights may take minutes to load, and whoever ends a worker has less patience."""
    stop, go_on = asyncio.Event(), threading.Event()

    def work() -> int:
        go_on.wait(30)
        if is_error:
            raise KeyError("too late")
        return 3

    started = asyncio.create_task(unless_stopped(stop, work))
    await asyncio.sleep(0)
    stop.set()
    assert await started is None
    assert left_threads.still_run()
    go_on.set()
    await eventually(lambda: not left_threads.still_run())
