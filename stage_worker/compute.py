"""The compute thread: runs a stage's orders one after another, in the order of the Attach stream.

The asyncio side puts orders and never touches the stage; this thread never awaits. Waiting for an
activation or for a free send slot happens here and is woken by closing the links. A stage on a
device may still work on a microbatch when the next order is looked at: see completions.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import assert_never

from chunkmesh import left_threads
from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation
from chunkmesh.transports.slots import InboundSlots, OutboundSlots
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.completions import Begun, Completions
from stage_worker.host_copies import CopyingStage, LayerCopies, Restored
from stage_worker.launched import ComputedStage, LaunchingStage
from stage_worker.orders import Microbatch
from stage_worker.page_io import PageIO
from stage_worker.page_jobs import StoreJob
from stage_worker.stage import Stage
from stage_worker.stage_use import StageUse


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UseStage:
    """Let somebody else use the stage for a while, outside of epochs."""

    run: Callable[[Stage], object]
    """Called on the compute thread."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpoch:
    """Become a stage of a new epoch: rows are dropped, pages keep their contents."""

    epoch: int
    num_pages: int
    page_tokens: int
    stage_index: int = 0
    """Which stage of its route."""
    done: Callable[[], object]
    """Called on the compute thread when the pool stands."""
    is_over: Callable[[], bool] = lambda: False
    """Whether the epoch has been left; its microbatches are then dropped. Called on the compute
    thread."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UseLinks:
    """Use these links for the epoch that has begun."""

    inbound: InboundSlots | None
    """None on the first stage."""
    outbound: OutboundSlots | None
    """None on the last stage."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UseLoad:
    """Copy a load's first pages from host memory and staging into the pool."""

    load_id: int
    page_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavePages:
    """Copy whole pages of the pool to host memory."""

    page_ids: tuple[int, ...]
    host_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CopyPages:
    """Copy whole pages inside the pool."""

    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRow:
    """Forget a request's row."""

    row: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the thread."""


_STOP_S = 10.0
CacheOrder = UseLoad | SavePages | StoreJob
"""What concerns cached pages."""
Order = UseStage | BeginEpoch | UseLinks | Microbatch | CacheOrder | CopyPages | ForgetRow | Stop


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Whom the compute thread tells; called on it, or on the one that waits for the device."""

    acked: Callable[[pb.Ack], None]
    fault: Callable[[int, str], None]
    """Epoch and reason: this epoch cannot go on."""
    crashed: Callable[[BaseException], None]
    """A bug of ours; the worker must end."""


class Compute:
    """Owns the compute thread and all that only it may touch."""

    def __init__(self, stage: Stage, page_io: PageIO, listener: Listener) -> None:
        """Prepare; start() begins."""
        self._stage = stage
        self._launcher = stage if isinstance(stage, LaunchingStage) else ComputedStage(stage)
        self._copier = stage if isinstance(stage, CopyingStage) else LayerCopies(stage)
        self._restored: list[Restored] = []
        """Since the last microbatch."""
        self.use = StageUse()
        """What this thread and the device do with their time."""
        self._completions = Completions(listener.acked, listener.crashed, self.use)
        self._page_io = page_io
        self._listener = listener
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._links = UseLinks(inbound=None, outbound=None)
        self._epoch: int | None = None
        """None while there is no epoch, or after it broke."""
        self._is_over: Callable[[], bool] = lambda: False
        """Of that epoch."""
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        """Begin to take orders."""
        self._completions.start()
        self._thread.start()

    def put(self, order: Order) -> None:
        """Add an order; from any thread."""
        self._orders.put(order)

    def stop(self) -> None:
        """Let the thread end after the orders already put; blocks, for a while at most."""
        self._orders.put(Stop())
        self._thread.join(_STOP_S)
        left_threads.leave(self._thread)
        self._completions.stop()

    def _run(self) -> None:
        """Take orders until Stop."""
        try:
            while not isinstance(order := self._orders.get(), Stop):
                self.use.begin("work")
                self._obey(order)
                self.use.begin("starved")
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: handed on, not kept
            self._listener.crashed(error)

    def _obey(self, order: Order) -> None:
        """Carry out one order."""
        match order:
            case UseStage():
                self._completions.drain()
                order.run(self._stage)
            case BeginEpoch():
                self._completions.drain()
                self._allocate(order)
                self.use.join(order.stage_index)
                self._epoch, self._is_over = order.epoch, order.is_over
                self._links = UseLinks(inbound=None, outbound=None)
                order.done()
            case UseLinks():
                self._links = order
            case Microbatch():
                self._run_microbatch(order)
            case UseLoad() | SavePages() | StoreJob():
                self._obey_cache(order)
            case CopyPages() | ForgetRow():
                self._copy_or_forget(order)
            case Stop():
                pass
            case _:
                assert_never(order)

    def _run_microbatch(self, microbatch: Microbatch) -> None:
        """Run one microbatch of the current epoch; a broken link ends the epoch."""
        if microbatch.epoch != self._epoch or self._is_over():
            return
        try:
            self._forward(microbatch)
        except LinkError as error:
            self._break_epoch(str(error))

    def _break_epoch(self, reason: str) -> None:
        """Drop all further orders of the epoch, and say why."""
        self._completions.drain()
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            self._listener.fault(epoch, reason)

    def _forward(self, microbatch: Microbatch) -> None:
        """Wait for the input, compute or launch, hand on, and have the end acknowledged."""
        inbound, outbound = self._links.inbound, self._links.outbound
        self._completions.make_room()
        asked_s = time.monotonic()
        self.use.begin("bubble")
        hidden_in = inbound.take(microbatch.seq_no) if inbound else None
        if inbound and hidden_in is not None and hidden_in.shape[0] != microbatch.num_tokens:
            raise LinkError(
                f"activation {microbatch.seq_no} has {hidden_in.shape[0]} tokens, "
                f"its microbatch {microbatch.num_tokens}"
            )
        self.use.begin("blocked")
        hidden_out = outbound.acquire(microbatch.num_tokens) if outbound else None
        self.use.begin("work")
        launched = self._launcher.launch(microbatch, hidden_in, hidden_out)
        if inbound:
            inbound.release(microbatch.seq_no)
        if outbound:
            outbound.post(Activation(seq_no=microbatch.seq_no, num_tokens=microbatch.num_tokens))
        self._completions.add(
            Begun(
                epoch=microbatch.epoch,
                seq_no=microbatch.seq_no,
                asked_s=asked_s,
                launched=launched,
                send_us=lambda: outbound.last_send_us if outbound else 0,
                restored=tuple(self._restored),
            )
        )
        self._restored.clear()

    def _copy_or_forget(self, order: CopyPages | ForgetRow) -> None:
        """Copy pages or forget a row, in an epoch."""
        if self._epoch is None:
            return
        if isinstance(order, CopyPages):
            self._stage.copy_pages(order.source_ids, order.target_ids)
        else:
            self._stage.release(order.row)

    def _allocate(self, order: BeginEpoch) -> None:
        """Make the pool, and cut host memory into pages of the same size."""
        self._stage.allocate(num_pages=order.num_pages, page_tokens=order.page_tokens)
        description = self._stage.description
        layers = range(description.first_layer, description.last_layer)
        self._page_io.host.cut(layers, self._stage.page_layer_bytes())

    def _obey_cache(self, order: CacheOrder) -> None:
        """Carry out an order about cached pages.

        What is copied out of the pool was acknowledged by all stages, so that stands when the epoch
        has broken, too.
        """
        match order:
            case UseLoad():
                self._use_load(order)
            case SavePages():
                host = self._page_io.host
                self._copier.save_pages(
                    order.page_ids, [host.page(each) for each in order.host_ids]
                )
            case StoreJob():
                if order.source is self._page_io.host:
                    self._copier.wait_saved()
                self._page_io.copy_out(order)

    def _use_load(self, order: UseLoad) -> None:
        """Copy loaded pages into the pool."""
        load = self._page_io.take(order.load_id)
        if self._epoch is None:
            return
        if load is None or len(load.host_ids) + len(load.ready) < len(order.page_ids):
            self._break_epoch(f"load {order.load_id} is gone")
            return
        pages = [*map(self._page_io.host.page, load.host_ids), *load.ready][: len(order.page_ids)]
        took_s = self._copier.restore_pages(order.page_ids, pages)
        num_bytes = sum(page.nbytes for page in pages)
        self._restored.append(Restored(num_bytes=num_bytes, took_s=took_s))
