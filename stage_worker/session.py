"""One Attach stream of a worker: says hello, obeys orders, reports, beats.

Orders for the compute thread are put in the order of the stream; loads and stores go to the I/O
threads at once; forming links is a task of its own, so that a slow peer blocks nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import structlog

from chunkmesh.transports.base import Transport
from chunkmesh.v1 import stage_pb2 as pb
from chunkmesh.v1 import stage_pb2_grpc
from stage_worker import codec
from stage_worker.cache_orders import CacheOrders
from stage_worker.compute import BeginEpoch, Compute, ForgetRow, UseLinks
from stage_worker.highest_term import HighestTerm
from stage_worker.identity import Identity
from stage_worker.links import Links, NotFormed
from stage_worker.page_io import PageIO
from stage_worker.place import NOWHERE, SPARE, STAGE, Duty, Place
from stage_worker.received_orders import ReceivedOrders
from stage_worker.silence import Silence

_log = structlog.get_logger(__name__)
HEARTBEAT_S = 0.25
_FORMING_S = 60.0
"""Time for pool and links; the scheduler gives up sooner and sends a new Join."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionListener:
    """Whom a session tells; called on the event loop."""

    connected: Callable[[], None]
    """A scheduler has answered."""
    placed: Callable[[Place], None]
    """What this worker is to the mesh has changed."""
    crashed: Callable[[BaseException], None]
    """A bug in a task."""


class _Epoch:
    """A Join that was obeyed, and whether it is still in force."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = threading.Event()
        """Read by the compute thread."""


class Session:
    """Owns one stream, and the links of the epoch that it is in."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        compute: Compute,
        page_io: PageIO,
        term: HighestTerm,
        listener: SessionListener,
    ) -> None:
        """Prepare; run() opens the stream."""
        self.was_of_use = False
        """Whether this worker has ever been a stage or a spare on this stream."""
        self._identity = identity
        self._transport = transport
        self._compute = compute
        self._page_io = page_io
        self._term = term
        self._listener = listener
        self._epoch = _Epoch(0)
        """That of the last Join."""
        self._place = NOWHERE
        self._received = ReceivedOrders(identity, page_io.host.num_bytes)
        self._links: Links | None = None
        self._forming: asyncio.Task[None] | None = None
        self._connect = asyncio.Event()
        self._cache_orders = CacheOrders(compute, page_io)
        self._outbox: deque[pb.AttachRequest] = deque()
        self._news = asyncio.Event()
        self._last_seq_no: int | None = None
        self._is_connected = False
        self._ended = False
        """Whether the stream is over, so that nothing more is said on it."""
        self._is_free = asyncio.Event()
        """Whether the stream is over, or the scheduler has let this worker go."""

    def say(self, message: pb.AttachRequest) -> None:
        """Queue a message to the scheduler; on the event loop."""
        self._outbox.append(message)
        self._news.set()

    def acked(self, ack: pb.Ack) -> None:
        """Report a microbatch."""
        self._last_seq_no = ack.seq_no
        self.say(pb.AttachRequest(ack=ack))

    def fault(
        self, epoch: int, reason: str, side: pb.FaultSide.ValueType = pb.FAULT_SIDE_UNSPECIFIED
    ) -> None:
        """Report that this worker cannot go on in an epoch."""
        if self._epoch.number == epoch and self._place.duty is Duty.STAGE:
            self._set_place(Place(duty=Duty.NONE, reason=reason))
        self.say(pb.AttachRequest(fault=pb.Fault(epoch=epoch, reason=reason, side=side)))

    async def leave(self) -> None:
        """Ask to be let go, and wait for that or for the stream's end."""
        if self._is_connected and not self._ended:
            self.say(pb.AttachRequest(leaving=pb.Leaving()))
            await self._is_free.wait()

    async def run(
        self, stub: stage_pb2_grpc.StageControlAsyncStub, silence: Silence | None = None
    ) -> None:
        """Serve one stream until it ends, or until the scheduler keeps silence, if that is given.

        Raises:
            Silent: the scheduler has said nothing for too long.
            grpc.aio.AioRpcError: the scheduler is gone or refuses this worker.
            StaleEpoch: the scheduler is no longer in charge.
            LinkError: it broke the protocol.
        """
        self.say(self._hello())
        heart = self._spawn(self._beat())
        call = stub.Attach(self._messages())
        connecting = self._spawn(self._hear_connected(call))
        try:
            async with silence.bounded() if silence else contextlib.nullcontext():
                async for response in call:
                    if silence is not None:
                        silence.broken()
                    if self._received.accepts(response):
                        await self._obey(response)
        finally:
            heart.cancel()
            connecting.cancel()
            self._ended = True
            self._news.set()
            self._is_free.set()
            self._set_place(NOWHERE)
            await self._leave_epoch()

    async def _hear_connected(self, call: grpc.aio.Call) -> None:
        """Tell when the stream stands; that it does not is told by reading from it."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.wait_for_connection()
            self._is_connected = True
            self._listener.connected()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task whose failure ends the worker."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._look_at)
        return task

    def _look_at(self, task: asyncio.Task[None]) -> None:
        """Report a task that ended by an error."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._listener.crashed(error)

    def _hello(self) -> pb.AttachRequest:
        """Say who this is."""
        return codec.hello_message(
            self._identity,
            data_address=self._transport.address,
            transport=self._transport.name,
            seen_epoch=self._term.epoch,
        )

    async def _messages(self) -> AsyncIterator[pb.AttachRequest]:
        """Yield what there is to say until the stream ends."""
        while not self._ended:
            while self._outbox:
                yield self._outbox.popleft()
            self._news.clear()
            await self._news.wait()

    async def _beat(self) -> None:
        """Say that this worker lives."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._compute.use.tell()
            if self._outbox:  # what waits says the same, and must not pile up behind a slow peer
                continue
            self.say(pb.AttachRequest(heartbeat=pb.Heartbeat(last_seq_no=self._last_seq_no)))

    async def _obey(self, response: pb.AttachResponse) -> None:
        """Carry out one order."""
        match response.WhichOneof("order"):
            case "microbatch":
                self._compute.put(codec.microbatch_from(response.microbatch))
            case "copy_pages":
                self._compute.put(codec.copy_pages_from(response.copy_pages))
            case "release":
                self._compute.put(ForgetRow(row=response.release.row))
            case (
                "load" | "end_load" | "commit_load" | "cancel_load" | "store" | "save_pages"
            ) as kind:
                self._cache_orders.obey(kind, response)
            case "join":
                await self._join(response.join)
            case "connect":
                self._connect.set()
            case "beat":
                pass
            case "stand_by":
                await self._stand_by(response.stand_by.reason)
            case "released":
                self._is_free.set()
            case _:
                _log.warning("unknown order ignored")

    async def _join(self, join: pb.Join) -> None:
        """Leave the old epoch and begin to form the new one.

        Raises:
            StaleEpoch: the scheduler is no longer in charge.
        """
        self._term.check(join.epoch)
        self._set_place(Place(duty=Duty.NONE, reason="the route forms"))
        await self._leave_epoch()
        self._epoch = _Epoch(join.epoch)
        self._page_io.join(codec.page_format_from(join, self._identity.description))
        self._links = Links(
            join=join,
            transport=self._transport,
            description=self._identity.description,
            peer=self._identity.peer,
            on_fault=lambda side, reason: self.fault(join.epoch, reason, side),
            spawn=self._spawn,
        )
        self._connect.clear()
        self._forming = self._spawn(self._form(self._links, join))

    async def _form(self, links: Links, join: pb.Join) -> None:
        """Make the pool, arm the inbound link, then on Connect dial the next stage."""
        try:
            async with asyncio.timeout(_FORMING_S):
                await self._begin_compute(join)
                await links.arm()
                self.say(pb.AttachRequest(join_ready=pb.JoinReady(epoch=join.epoch)))
                await self._connect.wait()
                formed = await links.connect()
        except NotFormed as error:
            self.fault(join.epoch, str(error), error.side)
            return
        except TimeoutError:
            self.fault(join.epoch, "the links did not form in time")
            return
        self._compute.put(UseLinks(inbound=links.inbound, outbound=links.outbound))
        self._set_place(STAGE)
        self._last_seq_no = None
        _log.info("stage connected", epoch=join.epoch, stage=join.stage_index)
        joined = pb.Joined(epoch=join.epoch, transport=formed.transport, rtt_us=formed.rtt_us)
        self.say(pb.AttachRequest(joined=joined))

    async def _begin_compute(self, join: pb.Join) -> None:
        """Wait until the compute thread has made the pool."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self._compute.put(
            BeginEpoch(
                epoch=join.epoch,
                num_pages=join.num_pages,
                page_tokens=join.page_tokens,
                stage_index=join.stage_index,
                done=lambda: loop.call_soon_threadsafe(ready.set),
                is_over=self._epoch.is_over.is_set,
            )
        )
        await ready.wait()

    async def _stand_by(self, reason: str) -> None:
        """Be in no route: a spare if others stand, which is so if there is no reason why not."""
        await self._leave_epoch()
        self._set_place(Place(duty=Duty.NONE, reason=reason) if reason else SPARE)

    async def _leave_epoch(self) -> None:
        """Drop what the compute thread has not begun of the epoch, and close its links."""
        self._epoch.is_over.set()
        self._compute.use.leave()
        self._cache_orders.forget_timers()
        if self._forming is not None:
            self._forming.cancel()
            await asyncio.gather(self._forming, return_exceptions=True)
            self._forming = None
        if self._links is not None:
            await self._links.close()
            self._links = None

    def _set_place(self, place: Place) -> None:
        """Tell what this worker is now."""
        self.was_of_use |= place.is_ready
        if place != self._place:
            self._place = place
            self._listener.placed(place)
