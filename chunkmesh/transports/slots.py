"""The bridge between a link, which lives in the event loop, and the compute thread.

Both ends own a few buffers of the largest activation. The compute thread works in one slot while
the link receives into or sends from another; it waits only when no slot is left. On a GPU a slot
goes to the link only after the compute stream has passed it, and to the compute stream only behind
what the link did to it. Tensors: T tokens of the microbatch, D hidden size, M the most tokens of a
microbatch.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from chunkmesh.errors import InvariantViolated, LinkError
from chunkmesh.transports import gpu_memory
from chunkmesh.transports.base import Activation, LinkSpec, Receiver, Sender
from chunkmesh.transports.header import payload_bytes

_CPU = torch.device("cpu")

FaultCallback = Callable[[LinkError], None]
"""Called once, in the event loop, when a link breaks by itself; not on close."""

SentCallback = Callable[[int, float], None]
"""Called in the event loop after each send, with its bytes and seconds."""

ItemT = TypeVar("ItemT")


class _Buffers:
    """The slots of one link end: flat uint8, each of the largest activation."""

    def __init__(self, spec: LinkSpec, num_slots: int, device: torch.device) -> None:
        self.spec = spec
        self.device = device
        self.flat = [
            torch.empty(spec.max_bytes, dtype=torch.uint8, device=device) for _ in range(num_slots)
        ]
        self._fences = [
            torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            for _ in range(num_slots if device.type == "cuda" else 0)
        ]
        """One a slot, as a slot has one user at a time. Waiting for them sleeps."""

    def payload(self, slot: int, activation: Activation) -> torch.Tensor:
        """Return the payload of an activation in a slot, flat uint8."""
        return self.flat[slot][: payload_bytes(self.spec, activation)]

    def rows(self, slot: int, num_tokens: int) -> torch.Tensor:
        """Return the first rows of a slot, [T, D]."""
        rows_MD = self.flat[slot].view(self.spec.dtype).view(-1, self.spec.hidden_size)
        return rows_MD[:num_tokens]

    def mark(self, slot: int) -> None:
        """Mark on this thread's stream where the use of a slot ends."""
        if self._fences:
            self._fences[slot].record(torch.cuda.current_stream(self.device))

    async def passed(self, slot: int) -> None:
        """Wait, off the event loop, until the marked use has ended; at once if there was none."""
        fence = self._fences[slot] if self._fences else None
        if fence is not None and not fence.query():  # type: ignore[no-untyped-call]
            await asyncio.to_thread(fence.synchronize)

    def follow(self, slot: int) -> None:
        """Let this thread's stream wait for the marked use; returns at once."""
        if self._fences:
            torch.cuda.current_stream(self.device).wait_event(self._fences[slot])


class _Handover(Generic[ItemT]):
    """What the event loop hands to the compute thread, in order, until the link ends.

    Bounded by the number of slots, as items are slots.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[ItemT | LinkError] = queue.SimpleQueue()
        self._closed = False

    def put(self, item: ItemT | LinkError) -> None:
        """Hand over; after a LinkError nothing more is taken."""
        self._items.put(item)

    def close(self) -> None:
        """Wake the compute thread with LinkError at once, whatever was handed over before."""
        self._closed = True
        self._items.put(LinkError("the link was closed"))

    def get(self, timeout_s: float | None) -> ItemT:
        """Block for the next item.

        Raises:
            LinkError: the link broke or was closed; again at every later call.
            TimeoutError: nothing came in time.
        """
        if self._closed:
            raise LinkError("the link was closed")
        try:
            item = self._items.get(timeout=timeout_s)
        except queue.Empty as error:
            raise TimeoutError(f"the link gave nothing within {timeout_s} s") from error
        if isinstance(item, LinkError):
            self._items.put(item)
            raise LinkError(str(item)) from item
        if self._closed:
            raise LinkError("the link was closed")
        return item


class InboundSlots:
    """Receives ahead of the compute thread.

    Made and run in the event loop; take and release are the compute thread's, close is anybody's.
    """

    def __init__(
        self,
        receiver: Receiver,
        spec: LinkSpec,
        *,
        num_slots: int = 2,
        device: torch.device = _CPU,
        on_fault: FaultCallback | None = None,
    ) -> None:
        self._receiver = receiver
        self._buffers = _Buffers(spec, num_slots, device)
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._free: asyncio.Queue[int] = asyncio.Queue(num_slots)
        """Slots to receive into, once the compute stream has passed them."""
        for slot in range(num_slots):
            self._free.put_nowait(slot)
        self._arrived: _Handover[tuple[Activation, int]] = _Handover()
        self._taken: dict[int, int] = {}
        """Slot by seq_no, between take and release; the compute thread's."""

    async def run(self) -> None:
        """Keep a receive posted until the link ends; cancelling ends the slots."""
        try:
            while True:
                slot = await self._free.get()
                await self._buffers.passed(slot)
                activation = await self._receiver.receive(self._buffers.flat[slot])
                self._buffers.mark(slot)
                self._arrived.put((activation, slot))
        except LinkError as error:
            self._arrived.put(error)
            if self._on_fault is not None:
                self._on_fault(error)
        except BaseException:
            self.close()
            raise

    def take(self, seq_no: int, timeout_s: float | None = None) -> torch.Tensor:
        """Block until activation seq_no is here; return it as [T, D], valid until release.

        Raises:
            LinkError: the link broke or was closed, or another activation came.
            TimeoutError: nothing came in time; take may be called again.
        """
        activation, slot = self._arrived.get(timeout_s)
        if activation.seq_no != seq_no:
            self._arrived.close()
            raise LinkError(f"activation {activation.seq_no} came, {seq_no} was expected")
        self._taken[seq_no] = slot
        self._buffers.follow(slot)
        return self._buffers.rows(slot, activation.num_tokens)

    def release(self, seq_no: int) -> None:
        """Give the slot of a taken activation back; its view is void."""
        if seq_no not in self._taken:
            raise InvariantViolated(f"activation {seq_no} was released but not taken")
        slot = self._taken.pop(seq_no)
        self._buffers.mark(slot)
        _call_in(self._loop, self._free.put_nowait, slot)

    def close(self) -> None:
        """Wake a blocked take with LinkError; the receiver is closed by its owner."""
        self._arrived.close()


class OutboundSlots:
    """Sends behind the compute thread.

    Made and run in the event loop; acquire and post are the compute thread's, close is anybody's.
    """

    def __init__(
        self,
        sender: Sender,
        spec: LinkSpec,
        *,
        num_slots: int = 2,
        device: torch.device = _CPU,
        on_fault: FaultCallback | None = None,
        on_sent: SentCallback | None = None,
    ) -> None:
        self.last_send_us = 0
        """From the start to the end of the last finished send."""
        self.bytes_sent = 0
        """Payload bytes of all finished sends."""
        gpu_memory.report_path(device, sender.transport)
        self._sender = sender
        self._buffers = _Buffers(spec, num_slots, device)
        self._on_fault = on_fault
        self._on_sent = on_sent
        self._loop = asyncio.get_running_loop()
        self._free: _Handover[int] = _Handover()
        for slot in range(num_slots):
            self._free.put(slot)
        self._posted: asyncio.Queue[tuple[Activation, int]] = asyncio.Queue(num_slots)
        self._acquired: tuple[int, int] | None = None
        """Slot and num_tokens, between acquire and post; the compute thread's."""

    async def run(self) -> None:
        """Send what is posted until the link ends; cancelling ends the slots."""
        try:
            while True:
                activation, slot = await self._posted.get()
                await self._buffers.passed(slot)
                payload = self._buffers.payload(slot, activation)
                begin = time.perf_counter()
                await self._sender.send(activation, payload)
                took_s = time.perf_counter() - begin
                self.last_send_us = round(took_s * 1e6)
                self.bytes_sent += payload.numel()
                if self._on_sent is not None:
                    self._on_sent(payload.numel(), took_s)
                self._free.put(slot)
        except LinkError as error:
            self._free.put(error)
            if self._on_fault is not None:
                self._on_fault(error)
        except BaseException:
            self.close()
            raise

    def acquire(self, num_tokens: int, timeout_s: float | None = None) -> torch.Tensor:
        """Return a free slot as [T, D] to be written until post; block while all are being sent.

        Raises:
            LinkError: the link broke or was closed.
            TimeoutError: no slot became free in time.
        """
        if self._acquired is not None:
            raise InvariantViolated("a slot was acquired while another was not yet posted")
        slot = self._free.get(timeout_s)
        self._acquired = (slot, num_tokens)
        return self._buffers.rows(slot, num_tokens)

    def post(self, activation: Activation) -> None:
        """Send the acquired slot as this activation; returns at once.

        Raises:
            LinkError: the link was closed.
        """
        if self._acquired is None or self._acquired[1] != activation.num_tokens:
            raise InvariantViolated(f"activation {activation.seq_no} was posted but not acquired")
        slot, _ = self._acquired
        self._acquired = None
        self._buffers.mark(slot)
        _call_in(self._loop, self._posted.put_nowait, (activation, slot))

    def close(self) -> None:
        """Wake a blocked acquire with LinkError; the sender is closed by its owner."""
        self._free.close()


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[ItemT], None], item: ItemT) -> None:
    try:
        loop.call_soon_threadsafe(call, item)
    except RuntimeError as error:
        raise LinkError("the event loop of the link has ended") from error
