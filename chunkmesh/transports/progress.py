"""Drives one UCX worker from the asyncio loop, by the worker's own epoll descriptor.

The loop sleeps in its selector while nothing happens; UCXX's own asyncio layer would poll.
Belongs to one event loop. Knows nothing of links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from chunkmesh.errors import LinkError

_MAX_ROUNDS = 16
"""Rounds without an event-loop turn while messages keep coming."""


class DrivenWorker(Protocol):
    """What is needed of a UCXX worker."""

    epoll_file_descriptor: int

    def progress(self) -> None:
        """Do what can be done without waiting."""
        ...

    def arm(self) -> bool:
        """Return whether the descriptor will tell of the next event; else progress again."""
        ...


class Progress:
    """Owns who waits for what on one UCX worker."""

    def __init__(
        self, worker: DrivenWorker, worker_errors: tuple[type[Exception], ...] = ()
    ) -> None:
        """Drive a worker, whose methods raise worker_errors when the network fails."""
        self._worker: DrivenWorker | None = worker
        """None once closed."""
        self._worker_errors = worker_errors
        self._loop = asyncio.get_running_loop()
        self._descriptor = worker.epoll_file_descriptor
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._error: str | None = None
        self._loop.add_reader(self._descriptor, self.advance)

    @property
    def error(self) -> str | None:
        """Why the link broke, None while it stands."""
        return self._error

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until ready() is true; it is asked after each step of the worker.

        Raises:
            LinkError: by ready, or the link broke first.
        """
        self.advance()
        if ready():
            return
        if self._error is not None:
            raise LinkError(self._error)
        waiter = (ready, self._loop.create_future())
        self._waiting.append(waiter)
        try:
            await waiter[1]
        finally:
            self._waiting.remove(waiter)

    def advance(self) -> None:
        """Step the worker until it sleeps, and wake who became ready."""
        for _ in range(_MAX_ROUNDS):
            if self._worker is None:
                return
            try:
                self._worker.progress()
                self._wake()
                if self._worker.arm():
                    return
            except self._worker_errors as error:
                self.fail(f"the network failed: {error}")
                self._loop.remove_reader(self._descriptor)
                return
        self._loop.call_soon(self.advance)

    def fail(self, reason: str) -> None:
        """Break the link: whoever waits gets LinkError, the first reason stays."""
        if self._error is not None:
            return
        self._error = reason
        self._loop.call_soon(self._wake)

    def close(self) -> None:
        """Stop driving and let go of the worker; whoever still waits gets LinkError."""
        if self._worker is None:
            return
        self.fail("the link was closed")
        self._wake()
        self._loop.remove_reader(self._descriptor)
        self._worker = None

    def _wake(self) -> None:
        for ready, future in self._waiting:
            if future.done():
                continue
            try:
                if ready():
                    future.set_result(None)
                elif self._error is not None:
                    future.set_exception(LinkError(self._error))
            except LinkError as error:
                future.set_exception(error)
