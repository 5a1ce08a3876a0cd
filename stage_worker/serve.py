"""Puts a stage worker together and runs it: weights, data plane, page I/O, health and side door."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import structlog

from chunkmesh import __version__, side_door
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.side_door import Readiness
from stage_worker.page_io import PageIO
from stage_worker.settings import WorkerSettings
from stage_worker.worker import Worker

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(slots=True)
class _Progress:
    """How far start-up has come, for /ready."""

    loaded: float = 0.0
    """Share of the weights that is loaded."""
    worker: Worker | None = None

    def readiness(self) -> Readiness:
        """Answer /ready."""
        if self.worker is None:
            return Readiness(
                ready=False,
                state="loading",
                reason="weights are being loaded",
                progress=self.loaded,
            )
        if self.worker.ready:
            return Readiness(ready=True, state="serving")
        return Readiness(
            ready=False, state="waiting", reason="loaded, but no route stands", progress=1.0
        )


async def serve(settings: WorkerSettings, stop: asyncio.Event) -> None:
    """Run a stage worker until stop is set.

    Raises:
        ConfigError: model, layers or an address do not do, or the scheduler refuses this worker.
    """
    progress = _Progress()
    health = GrpcServer()
    async with contextlib.AsyncExitStack() as stack:
        app = side_door.app(
            readiness=progress.readiness,
            info=lambda: {
                "service": "stage_worker",
                "version": __version__,
                "layers": str(settings.layers),
            },
        )
        await stack.enter_async_context(side_door.listening(app, settings.listen("http_port")))
        await stack.enter_async_context(health.listening(settings.listen("port")))
        stage = await asyncio.to_thread(_load, settings, progress)
        progress.worker = worker = Worker(
            stage=stage,
            transport=_transport(settings),
            page_io=PageIO,
            kv_capacity_tokens=settings.max_total_tokens,
            peer=None if settings.peer is None else str(settings.peer),
            on_ready=lambda ready: health.set_serving(serving=ready),
        )
        schedulers = [str(each) for each in settings.scheduler]
        running = asyncio.create_task(worker.run(schedulers))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        running.cancel()
        stopped.cancel()
        await asyncio.gather(running, stopped, return_exceptions=True)
