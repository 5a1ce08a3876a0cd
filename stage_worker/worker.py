"""A stage worker: one stage, its compute thread, its page I/O, and a stream to the scheduler that is
opened again whenever it ends.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence

import grpc
import structlog

from chunkmesh.errors import ChunkMeshError, ConfigError, InvalidRequest
from chunkmesh.grpc_client import channel
from chunkmesh.status import from_rpc_error
from chunkmesh.transports.base import Transport
from chunkmesh.v1 import stage_pb2 as pb
from chunkmesh.v1 import stage_pb2_grpc
from stage_worker.compute import Compute, Listener
from stage_worker.page_io import PageIO
from stage_worker.session import Identity, Session
from stage_worker.stage import Stage

_log = structlog.get_logger()
_RETRY_S = (0.1, 2.0)
"""First and longest pause between two tries to reach a scheduler."""


class Worker:
    """Owns the stage and everything around it."""

    def __init__(
        self,
        *,
        stage: Stage,
        transport: Transport,
        make_page_io: Callable[[Stage], PageIO],
        kv_capacity_tokens: int,
        peer: str | None,
    ) -> None:
        """Prepare; run() serves."""
        self.session: Session | None = None
        """The stream that is open now."""
        self._identity = Identity(
            incarnation=secrets.token_hex(8),
            description=stage.description,
            kv_capacity_tokens=kv_capacity_tokens,
            peer=peer,
        )
        self._transport = transport
        self._page_io = make_page_io(stage)
        self._loop = asyncio.get_running_loop()
        self._crash: asyncio.Future[None] = self._loop.create_future()
        self._compute = Compute(
            stage,
            self._page_io,
            Listener(
                acked=lambda ack: self._on_loop(lambda session: session.acked(ack)),
                fault=lambda epoch, why: self._on_loop(lambda session: session.fault(epoch, why)),
                crashed=lambda error: (
                    self._loop.call_soon_threadsafe(self._crash.set_exception, error) and None
                ),
            ),
        )

    @property
    def ready(self) -> bool:
        """Whether this worker is a connected stage of a route."""
        return self.session is not None and self.session.epoch is not None

    async def run(self, schedulers: Sequence[str]) -> None:
        """Serve until cancelled; dials the schedulers in order, again and again.

        Raises:
            ConfigError: a scheduler refuses this worker.
        """
        await self._transport.start()
        self._compute.start()
        attach = asyncio.create_task(self._attach_for_ever(schedulers))
        try:
            await asyncio.wait((attach, self._crash), return_when=asyncio.FIRST_COMPLETED)
            if self._crash.done():
                self._crash.result()
            attach.result()
        finally:
            attach.cancel()
            await asyncio.gather(attach, return_exceptions=True)
            await self._transport.close()
            await asyncio.to_thread(self._compute.stop, 5.0)
            await asyncio.to_thread(self._page_io.close)

    async def _attach_for_ever(self, schedulers: Sequence[str]) -> None:
        """Keep a stream to one of the schedulers open."""
        pause_s = _RETRY_S[0]
        while True:
            for address in schedulers:
                if await self._attach_once(address):
                    pause_s = _RETRY_S[0]
                if self.session is not None and self.session.draining:
                    return
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - only jitter
            pause_s = min(2 * pause_s, _RETRY_S[1])

    async def _attach_once(self, address: str) -> bool:
        """Serve one stream; True if it formed a route."""
        async with channel(address) as to_scheduler:
            session = Session(
                identity=self._identity,
                transport=self._transport,
                compute=self._compute,
                page_io=self._page_io,
            )
            self.session = session
            try:
                await session.run(stage_pb2_grpc.StageControlStub(to_scheduler))
            except grpc.aio.AioRpcError as error:
                reason = from_rpc_error(error)
                if isinstance(reason, InvalidRequest):
                    raise ConfigError(f"scheduler {address}: {reason}") from error
                self._note(address, reason)
        return session.served

    def _note(self, address: str, reason: ChunkMeshError) -> None:
        """Log why a stream ended."""
        _log.warning("scheduler not reached", scheduler=address, reason=str(reason))

    def _on_loop(self, tell: Callable[[Session], None]) -> None:
        """Let the open session say something; from any thread."""

        def tell_current() -> None:
            if self.session is not None:
                tell(self.session)

        self._loop.call_soon_threadsafe(tell_current)

    def load_done(self, load_id: int, num_pages: int, bad_digests: tuple[bytes, ...]) -> None:
        """Report the end of a load; from an I/O thread."""
        done = pb.LoadDone(load_id=load_id, num_pages=num_pages, bad_digests=bad_digests)
        self._on_loop(lambda session: session.say(pb.AttachRequest(load_done=done)))

    def store_done(self, store_id: int, stored: tuple[int, ...]) -> None:
        """Report the end of a store; from an I/O thread."""
        done = pb.StoreDone(store_id=store_id, stored=stored)
        self._on_loop(lambda session: session.say(pb.AttachRequest(store_done=done)))
