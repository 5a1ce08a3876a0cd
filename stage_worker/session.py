"""One Attach stream of a worker: says hello, obeys orders, reports, beats.

Orders for the compute thread are put in the order of the stream; loads and stores go to the I/O
threads at once; forming links is a task of its own, so that a slow peer blocks nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import structlog

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Transport
from chunkmesh.v1 import stage_pb2 as pb
from chunkmesh.v1 import stage_pb2_grpc
from stage_worker import codec
from stage_worker.compute import (
    BeginEpoch,
    Compute,
    CopyPages,
    ForgetRow,
    SavePages,
    UseLinks,
    UseLoad,
)
from stage_worker.identity import Identity
from stage_worker.links import Links
from stage_worker.page_io import PageIO
from stage_worker.received_orders import ReceivedOrders

_log = structlog.get_logger(__name__)
HEARTBEAT_S = 0.25
_FORMING_S = 60.0
"""Time for pool and links; the scheduler gives up sooner and sends a new Join."""


class Session:
    """Owns one stream, and the links of the epoch that it is in."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        compute: Compute,
        page_io: PageIO,
        on_ready: Callable[[bool], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Prepare; run() opens the stream. on_crash hears of bugs in tasks."""
        self.was_stage = False
        """Whether this stream has ever formed a route."""
        self._identity = identity
        self._transport = transport
        self._compute = compute
        self._page_io = page_io
        self._on_ready = on_ready
        self._on_crash = on_crash
        self._received = ReceivedOrders(identity, page_io.host.num_bytes)
        self._epoch: int | None = None
        """Epoch in which this worker is a connected stage; None while it is none."""
        self._links: Links | None = None
        self._forming: asyncio.Task[None] | None = None
        self._connect = asyncio.Event()
        self._load_timers: dict[int, asyncio.TimerHandle] = {}
        """Of loads with a time limit that is not over, by id; they may have ended."""
        self._outbox: deque[pb.AttachRequest] = deque()
        self._news = asyncio.Event()
        self._last_seq_no: int | None = None
        self._ended = False
        """Whether the stream is over, so that nothing more is said on it."""

    def say(self, message: pb.AttachRequest) -> None:
        """Queue a message to the scheduler; on the event loop."""
        self._outbox.append(message)
        self._news.set()

    def acked(self, ack: pb.Ack) -> None:
        """Report a microbatch."""
        self._last_seq_no = ack.seq_no
        self.say(pb.AttachRequest(ack=ack))

    def fault(self, epoch: int, reason: str) -> None:
        """Report that this worker cannot go on in an epoch."""
        if self._epoch == epoch:
            self._set_epoch(None)
        self.say(pb.AttachRequest(fault=pb.Fault(epoch=epoch, reason=reason)))

    async def run(
        self, stub: stage_pb2_grpc.StageControlAsyncStub, on_connected: Callable[[], None]
    ) -> None:
        """Serve one stream until it ends; on_connected hears that it stands.

        Raises:
            grpc.aio.AioRpcError: the scheduler is gone or refuses this worker.
            LinkError: it broke the protocol.
        """
        self.say(self._hello())
        heart = self._spawn(self._beat())
        call = stub.Attach(self._messages())
        connecting = self._spawn(_hear_connected(call, on_connected))
        try:
            async for response in call:
                await self._obey(response)
        finally:
            heart.cancel()
            connecting.cancel()
            self._ended = True
            self._news.set()
            await self._leave_epoch()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task whose failure ends the worker."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._look_at)
        return task

    def _look_at(self, task: asyncio.Task[None]) -> None:
        """Report a task that ended by an error."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_crash(error)

    def _hello(self) -> pb.AttachRequest:
        """Say who this is."""
        return codec.hello_message(
            self._identity,
            data_address=self._transport.address,
            transport=self._transport.name,
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
            if self._outbox:  # what waits says the same, and must not pile up behind a slow peer
                continue
            self.say(pb.AttachRequest(heartbeat=pb.Heartbeat(last_seq_no=self._last_seq_no)))

    async def _obey(self, response: pb.AttachResponse) -> None:
        """Carry out one order."""
        if not self._received.accepts(response):
            return
        match response.WhichOneof("order"):
            case "microbatch":
                self._compute.put(codec.microbatch_from(response.microbatch))
            case "copy_pages":
                copy = response.copy_pages
                self._compute.put(
                    CopyPages(source_ids=tuple(copy.source_ids), target_ids=tuple(copy.target_ids))
                )
            case "release":
                self._compute.put(ForgetRow(row=response.release.row))
            case (
                "load" | "end_load" | "commit_load" | "cancel_load" | "store" | "save_pages"
            ) as kind:
                self._obey_cache(kind, response)
            case "join":
                await self._join(response.join)
            case "connect":
                self._connect.set()
            case _:
                _log.warning("unknown order ignored")

    def _obey_cache(self, kind: str, response: pb.AttachResponse) -> None:
        """Carry out an order that concerns cached pages; only copies of pages are in turn."""
        match kind:
            case "load":
                self._load(response.load)
            case "end_load":
                self._page_io.end(response.end_load.load_id)
            case "commit_load":
                commit = response.commit_load
                page_ids = tuple(commit.page_ids)
                self._compute.put(UseLoad(load_id=commit.load_id, page_ids=page_ids))
            case "cancel_load":
                self._page_io.cancel(response.cancel_load.load_id)
            case "save_pages":
                save = response.save_pages
                page_ids, host_ids = tuple(save.page_ids), tuple(save.host_ids)
                self._page_io.host.expect(save.digests, host_ids)
                self._compute.put(SavePages(page_ids=page_ids, host_ids=host_ids))
            case _:
                self._store(response.store)

    def _store(self, store: pb.Store) -> None:
        """Begin a store, in turn if nothing pins its pages."""
        pages = codec.store_pages_from(store)
        if store.in_turn:
            copies = self._page_io.prepare(store.store_id, pages, from_host=store.from_host)
            self._compute.put(copies)
        else:
            self._page_io.store(store.store_id, pages)

    def _load(self, load: pb.Load) -> None:
        """Begin a load, and see to its end if it has a time limit."""
        self._page_io.load(load.load_id, tuple(load.digests), tuple(load.host_ids))
        if load.timeout_ms:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(load.timeout_ms / 1000, self._end_load, load.load_id)
            self._load_timers[load.load_id] = timer

    def _end_load(self, load_id: int) -> None:
        """End a load whose time is over."""
        del self._load_timers[load_id]
        self._page_io.end(load_id)

    async def _join(self, join: pb.Join) -> None:
        """Leave the old epoch and begin to form the new one."""
        await self._leave_epoch()
        self._page_io.join(codec.page_format_from(join, self._identity.description))
        self._links = Links(
            join=join,
            transport=self._transport,
            description=self._identity.description,
            peer=self._identity.peer,
            on_fault=lambda reason: self.fault(join.epoch, reason),
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
        except (LinkError, TimeoutError) as error:
            self.fault(join.epoch, str(error) or "the links did not form in time")
            return
        self._compute.put(UseLinks(inbound=links.inbound, outbound=links.outbound))
        self.was_stage = True
        self._set_epoch(join.epoch)
        self._last_seq_no = None
        _log.info("stage connected", epoch=join.epoch, stage=join.stage_index)
        joined = pb.Joined(epoch=join.epoch, transport=formed.transport, rtt_us=formed.rtt_us)
        self.say(pb.AttachRequest(joined=joined))

    async def _begin_compute(self, join: pb.Join) -> None:
        """Wait until the compute thread has made the pool."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        self._compute.put(
            BeginEpoch(
                epoch=join.epoch,
                num_pages=join.num_pages,
                page_tokens=join.page_tokens,
                done=lambda: loop.call_soon_threadsafe(ready.set),
            )
        )
        await ready.wait()

    async def _leave_epoch(self) -> None:
        """Close the links of the epoch, if there is one."""
        self._set_epoch(None)
        for timer in self._load_timers.values():  # ids come again in the next epoch
            timer.cancel()
        self._load_timers.clear()
        if self._forming is not None:
            self._forming.cancel()
            await asyncio.gather(self._forming, return_exceptions=True)
            self._forming = None
        if self._links is not None:
            await self._links.close()
            self._links = None

    def _set_epoch(self, epoch: int | None) -> None:
        """Become a connected stage, or cease to be one."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._on_ready(epoch is not None)


async def _hear_connected(call: grpc.aio.Call, on_connected: Callable[[], None]) -> None:
    """Tell when a stream stands; that it does not is told by reading from it."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call.wait_for_connection()
        on_connected()
