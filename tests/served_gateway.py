"""A gateway, and the mesh behind it, in a thread with a loop of its own: clients may block."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from chunkmesh.address import HostPort
from chunkmesh.gateway.server import running
from chunkmesh.gateway.settings import GatewaySettings
from tests.mesh import Mesh, mesh

_T = TypeVar("_T")
_WAIT_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a test may touch of a gateway that runs."""

    address: HostPort
    loop: asyncio.AbstractEventLoop
    mesh: Mesh | None
    stopped: asyncio.Event

    @property
    def url(self) -> str:
        """Of the HTTP port."""
        return f"http://{self.address}"

    @property
    def openai_url(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work in the loop of gateway and mesh."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_WAIT_S)

    def stop(self) -> None:
        """Begin to take the gateway down, and return at once."""
        self.loop.call_soon_threadsafe(self.stopped.set)

    def at_rest(self) -> None:
        """Wait until the mesh has nothing left of any request."""
        assert self.mesh is not None
        self.run(self.mesh.at_rest())

    def has_requests(self, num_requests: int) -> None:
        """Wait until so many requests have come to the mesh and have not ended."""
        assert self.mesh is not None
        self.run(self.mesh.has_requests(num_requests))


@contextlib.contextmanager
def served_gateway(*servers: HostPort, **settings: Any) -> Iterator[Served]:
    """Run a gateway in front of schedulers that run elsewhere."""
    with _served(servers, None, settings) as served:
        yield served


@contextlib.contextmanager
def served_mesh(
    folder: Path, stages: Any, gateway: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Served]:
    """Run a mesh of stages and a gateway; settings are the scheduler's."""
    with _served((), lambda: mesh(folder, stages, **settings), gateway or {}) as served:
        yield served


@contextlib.contextmanager
def _served(
    servers: tuple[HostPort, ...],
    make_mesh: Callable[[], AbstractAsyncContextManager[Mesh]] | None,
    settings: dict[str, Any],
) -> Iterator[Served]:
    up: Future[Served] = Future()
    ended = threading.Event()

    async def main() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            behind = None if make_mesh is None else await stack.enter_async_context(make_mesh())
            given = {
                "server": servers if behind is None else (behind.address,),
                "port": 0,
                "drain_timeout": 5.0,
                **settings,
            }
            async with running(GatewaySettings.model_validate(given)) as address:
                up.set_result(
                    Served(
                        address=address,
                        loop=loop,
                        mesh=behind,
                        stopped=stopped,
                    )
                )
                await stopped.wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # shown where the test waits
            if up.done():
                raise
            up.set_exception(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        served = up.result(_WAIT_S)
        try:
            yield served
        finally:
            if not ended.is_set():
                served.stop()
    finally:
        thread.join(_WAIT_S)
        assert not thread.is_alive()
