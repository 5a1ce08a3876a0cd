"""Driving a worker by its descriptor: nothing is missed, nothing spins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from chunkmesh.errors import LinkError
from chunkmesh.transports.progress import Progress


class NetworkFault(Exception):
    """What the fake worker raises."""


class FakeWorker:
    """A worker whose events are bytes in a pipe."""

    def __init__(self) -> None:
        self.epoll_file_descriptor, self._signal = os.pipe()
        os.set_blocking(self.epoll_file_descriptor, False)
        self.steps = 0
        self.events = 0
        self.busy_arms = 0
        self.failing = False

    def happen(self) -> None:
        """Let one event come."""
        os.write(self._signal, b"!")

    def progress(self) -> None:
        """Take all events."""
        self.steps += 1
        if self.failing:
            raise NetworkFault("cable cut")
        try:
            self.events += len(os.read(self.epoll_file_descriptor, 100))
        except BlockingIOError:
            return

    def arm(self) -> bool:
        """Refuse as often as the test wants."""
        self.busy_arms -= 1
        return self.busy_arms < 0

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.epoll_file_descriptor)
        os.close(self._signal)


@pytest.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    """Make a worker and close it at the end."""
    worker = FakeWorker()
    yield worker
    worker.close()


async def test_an_event_wakes_who_waits_for_it(worker: FakeWorker) -> None:
    """Two waits with different conditions end at different events."""
    progress = Progress(worker)
    first = asyncio.create_task(progress.until(lambda: worker.events >= 1))
    second = asyncio.create_task(progress.until(lambda: worker.events >= 2))
    await asyncio.sleep(0)
    worker.happen()
    await asyncio.wait_for(first, 30)
    assert not second.done()
    worker.happen()
    await asyncio.wait_for(second, 30)
    progress.close()


async def test_a_sleeping_worker_is_left_alone(worker: FakeWorker) -> None:
    """Between events there are no steps: this is what keeps an idle link at 0 % CPU."""
    progress = Progress(worker)
    waiting = asyncio.create_task(progress.until(lambda: worker.events >= 1))
    await asyncio.sleep(0)
    steps = worker.steps
    await asyncio.sleep(0.05)
    assert worker.steps == steps
    worker.happen()
    await asyncio.wait_for(waiting, 30)
    progress.close()


async def test_a_busy_worker_does_not_starve_the_loop(worker: FakeWorker) -> None:
    """While messages keep coming, heartbeats must still be sent."""
    progress = Progress(worker)
    worker.busy_arms = 1000
    progress.advance()
    assert 0 < worker.busy_arms < 1000
    async with asyncio.timeout(30):
        while worker.busy_arms >= 0:
            await asyncio.sleep(0)
    progress.close()


async def test_a_break_ends_every_wait(worker: FakeWorker) -> None:
    """The first reason is told, to present and later waits alike."""
    progress = Progress(worker)
    waiting = asyncio.create_task(progress.until(lambda: False))
    await asyncio.sleep(0)
    progress.fail("the peer is gone")
    progress.fail("another reason")
    with pytest.raises(LinkError, match="the peer is gone"):
        await asyncio.wait_for(waiting, 30)
    with pytest.raises(LinkError, match="the peer is gone"):
        await progress.until(lambda: False)
    progress.close()


async def test_what_is_complete_is_given_even_after_a_break(worker: FakeWorker) -> None:
    """An activation that came whole before the peer died is still good."""
    progress = Progress(worker)
    progress.fail("the peer is gone")
    await progress.until(lambda: True)
    progress.close()


async def test_a_failing_network_breaks_the_link_once(worker: FakeWorker) -> None:
    """An error in the loop's callback must reach who waits, and not repeat for ever."""
    progress = Progress(worker, (NetworkFault,))
    waiting = asyncio.create_task(progress.until(lambda: False))
    await asyncio.sleep(0)
    worker.failing = True
    worker.happen()
    with pytest.raises(LinkError, match="cable cut"):
        await asyncio.wait_for(waiting, 30)
    steps = worker.steps
    await asyncio.sleep(0.02)
    assert worker.steps == steps
    progress.close()
    progress.close()
