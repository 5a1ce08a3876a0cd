"""A stage worker: one stage, its compute thread, its page I/O, and a stream to the scheduler.

The stream is opened again whenever it ends; weights and pages stay. A crash of the compute thread
or of an I/O thread ends the worker, since it can only come from a bug.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import secrets
import time
from collections.abc import Callable, Sequence

import grpc
import structlog

from chunkmesh.address import HostPort
from chunkmesh.dialling import Dialling
from chunkmesh.errors import (
    ChunkMeshError,
    ConfigError,
    InvalidRequest,
    LinkError,
    StaleEpoch,
    Unavailable,
)
from chunkmesh.grpc_client import PLAIN, Access, channel, raise_if_cancelled
from chunkmesh.status import from_rpc_error
from chunkmesh.transports.base import Transport
from chunkmesh.trust.access import Role
from chunkmesh.trust.tls_files import TlsFiles
from chunkmesh.v1 import stage_pb2 as pb
from chunkmesh.v1 import stage_pb2_grpc
from stage_worker import codec
from stage_worker.compute import Compute, Listener, UseStage
from stage_worker.free_memory import free_host_bytes
from stage_worker.highest_term import HighestTerm
from stage_worker.host_pages import HostPages
from stage_worker.identity import Identity
from stage_worker.lost_scheduler import LostScheduler
from stage_worker.page_io import PageIO
from stage_worker.page_jobs import LoadResult, PageIOLimits, StoreResult
from stage_worker.page_store import PageStore
from stage_worker.place import LEAVING, NOWHERE, Duty, Place
from stage_worker.preferred_peer import PreferredPeer
from stage_worker.profile_plan import ProfilePoint
from stage_worker.session import Session, SessionListener
from stage_worker.silence import Silence, Silent
from stage_worker.stage import Stage
from stage_worker.start_profile import StartProfile

_log = structlog.get_logger(__name__)
_SILENT_PAUSE_S = 2.0
"""How long a scheduler is left alone that says nothing: to find that out again takes as long."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a worker has room for."""

    kv_tokens: int
    """Tokens in its pool, on the device."""
    host: HostPages = dataclasses.field(default_factory=lambda: HostPages(0))
    """Memory for what the pool has no room for."""


class Worker:
    """Owns the stage and everything around it."""

    def __init__(
        self,
        *,
        stage: Stage,
        transport: Transport,
        stores: Sequence[PageStore],
        capacity: Capacity,
        peer: str | None,
        on_ready: Callable[[bool], None],
    ) -> None:
        """Prepare; run() serves.

        stores are clients of the page store, one for each I/O thread, and owned from here on;
        without any, nothing is stored. peer is not used on the last stage. on_ready hears when this
        becomes a connected stage or a spare, or ceases to be either.
        """
        self.place = NOWHERE
        """What this worker is to the mesh."""
        self._lost = LostScheduler()
        self._term = HighestTerm()
        self._access = PLAIN
        """To schedulers."""
        self._transport = transport
        layers = range(stage.description.first_layer, stage.description.last_layer)
        self._page_io = PageIO(
            stores,
            stage,
            layers,
            report=self._page_io_ended,
            crashed=self._thread_crashed,
            limits=PageIOLimits.of_pool(
                capacity.kv_tokens * stage.description.kv_bytes_per_token,
                capacity.host,
                free_host_bytes(),
                pinned=stage.description.device != "cpu",
            ),
        )
        self._identity = Identity(
            incarnation=secrets.token_hex(8),
            description=stage.description,
            kv_capacity_tokens=capacity.kv_tokens,
            host_capacity_tokens=capacity.host.num_bytes // stage.description.kv_bytes_per_token,
            peer=_preferred(peer, stage),
        )
        self._on_ready = on_ready
        self._session: Session | None = None
        """The stream that is open now."""
        self._loop = asyncio.get_running_loop()
        self._crashed: asyncio.Future[None] = self._loop.create_future()
        self._compute = Compute(
            stage,
            self._page_io,
            Listener(acked=self._acked, fault=self._fault, crashed=self._thread_crashed),
        )

    async def run(
        self,
        schedulers: Sequence[HostPort],
        start_profile: StartProfile | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Serve until cancelled; dials the schedulers in order, again and again.

        start_profile runs first, and every scheduler is told what it finds. tls proves who dials,
        with the certificate of the moment; without it schedulers are dialled in plain text.

        Raises:
            ConfigError: the data port cannot be bound, or a scheduler refuses this worker.
        """
        self._access = Access(tls=tls, server_role=Role.SCHEDULER)
        await self._transport.start()
        self._compute.start()
        attach = asyncio.create_task(self._profile_and_attach(start_profile, schedulers))
        try:
            await asyncio.wait((attach, self._crashed), return_when=asyncio.FIRST_COMPLETED)
            for ended in (self._crashed, attach):
                if ended.done():
                    ended.result()
        finally:
            if start_profile is not None:
                start_profile.cancel()
            attach.cancel()
            await asyncio.gather(attach, return_exceptions=True)
            await self._transport.close()
            await asyncio.to_thread(self._compute.stop)
            await asyncio.to_thread(self._page_io.close)

    async def leave(self) -> None:
        """Announce the end of this worker, and wait until the mesh does without it.

        That is at once if it is in no route, or without a scheduler. It attaches to none any more.
        """
        self._placed(LEAVING)
        if self._session is not None:
            await self._session.leave()

    @property
    def lost_reason(self) -> str:
        """Why no scheduler is connected, in words; empty if one is, or none was tried."""
        return self._lost.reason

    async def _profile_and_attach(
        self, start_profile: StartProfile | None, schedulers: Sequence[HostPort]
    ) -> None:
        """Find out what microbatches take, then keep a stream open."""
        if start_profile is not None:
            profile = await self._profile(start_profile)
            self._identity = dataclasses.replace(self._identity, profile=profile)
        await self._attach_again(schedulers)

    async def _profile(self, start_profile: StartProfile) -> tuple[ProfilePoint, ...]:
        """Let the compute thread measure."""
        measured: asyncio.Queue[tuple[ProfilePoint, ...]] = asyncio.Queue()

        def measure(stage: Stage) -> None:
            points = start_profile.measure(stage)
            self._loop.call_soon_threadsafe(measured.put_nowait, points)

        self._compute.put(UseStage(run=measure))
        return await measured.get()

    async def _attach_again(self, schedulers: Sequence[HostPort]) -> None:
        """Keep a stream to one of the schedulers open."""
        dialling = Dialling(schedulers, random.random)
        while True:
            address, wait_s = dialling.next(time.monotonic())
            await asyncio.sleep(wait_s)
            await self._until_idle()
            if self.place is LEAVING:
                return
            lost = await self._attach(address, has_others=len(schedulers) > 1)
            raise_if_cancelled()
            if self._session is not None and self._session.was_of_use:
                dialling.served(address)
            now_s = time.monotonic()
            if isinstance(lost, Unavailable) and lost.retry_after_s:
                dialling.refused(address, now_s, retry_after_s=lost.retry_after_s)
            else:
                silent_s = _SILENT_PAUSE_S if isinstance(lost, Silent) else 0.0
                dialling.failed(address, now_s, at_least_s=silent_s)

    async def _until_idle(self) -> None:
        """Wait until the compute thread has ended what it is at; one that hangs is of no use."""
        idle = asyncio.Event()
        self._compute.put(UseStage(run=lambda _stage: self._loop.call_soon_threadsafe(idle.set)))
        self._placed(Place(duty=Duty.NONE, reason="its compute thread is not idle yet"))
        await idle.wait()
        self._placed(NOWHERE)

    async def _attach(self, address: HostPort, *, has_others: bool) -> ChunkMeshError | None:
        """Serve one stream until it ends; return why it did, if the scheduler was lost."""
        lost: ChunkMeshError
        session = self._session = Session(
            identity=self._identity,
            transport=self._transport,
            compute=self._compute,
            page_io=self._page_io,
            term=self._term,
            listener=SessionListener(
                connected=self._lost.connected, placed=self._placed, crashed=self._crash
            ),
        )
        async with channel(address, self._access) as to_scheduler:
            try:
                stub = stage_pb2_grpc.StageControlStub(to_scheduler)
                await session.run(stub, Silence() if has_others else None)
            except grpc.aio.AioRpcError as error:
                lost = from_rpc_error(error)
                if _is_refusal(error, lost):
                    raise ConfigError(f"scheduler {address}: {lost}") from error
            except (StaleEpoch, Silent) as error:
                lost = error
            except LinkError as error:
                lost = LinkError(f"it broke the protocol: {error}")
            else:
                return None
        self._lost.lost(str(address), str(lost))
        return lost

    def _placed(self, place: Place) -> None:
        """Note what this worker is now; who leaves becomes nothing else."""
        if self.place is LEAVING or place == self.place:
            return
        was_ready, self.place = self.place.is_ready, place
        if place.is_ready != was_ready:
            self._on_ready(place.is_ready)

    def _acked(self, ack: pb.Ack) -> None:
        """Report a microbatch; on the compute thread."""
        self._loop.call_soon_threadsafe(self._tell, lambda session: session.acked(ack))

    def _fault(self, epoch: int, reason: str) -> None:
        """Report a broken epoch; on the compute thread."""
        self._loop.call_soon_threadsafe(self._tell, lambda session: session.fault(epoch, reason))

    def _thread_crashed(self, error: BaseException) -> None:
        """End the worker; on the compute thread or an I/O thread."""
        self._loop.call_soon_threadsafe(self._crash, error)

    def _crash(self, error: BaseException) -> None:
        """End the worker because of a bug."""
        if not self._crashed.done():
            self._crashed.set_exception(error)

    def _page_io_ended(self, result: LoadResult | StoreResult) -> None:
        """Report the end of a load or a store; on an I/O thread."""
        message = codec.page_io_message(result)
        self._loop.call_soon_threadsafe(self._tell, lambda session: session.say(message))

    def _tell(self, say: Callable[[Session], None]) -> None:
        """Let the open session say something; on the event loop."""
        if self._session is not None:
            say(self._session)


def _is_refusal(error: grpc.aio.AioRpcError, meant: ChunkMeshError) -> bool:
    """Whether a scheduler does not want this worker, now and later.

    The same error may stand for other statuses, of gRPC itself or of a proxy, which pass.
    """
    has_its_status = error.code() is grpc.StatusCode.INVALID_ARGUMENT
    return has_its_status and isinstance(meant, InvalidRequest)


def _preferred(peer: str | None, stage: Stage) -> PreferredPeer | None:
    """Return where a stage would rather send its activations; the last one sends none."""
    if peer is None:
        return None
    if stage.description.is_last:
        _log.warning("peer ignored", peer=peer, reason="this is the last stage")
        return None
    return PreferredPeer(peer)
