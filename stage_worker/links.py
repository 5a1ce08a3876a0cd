"""Forms a worker's two links in a new epoch: the one that it accepts and the one that it dials."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import LinkSpec, Receiver, Sender, Transport
from chunkmesh.transports.slots import InboundSlots, OutboundSlots
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker import metrics
from stage_worker.preferred_peer import PreferredPeer
from stage_worker.stage import StageDescription

_CPU_SLOTS, _DEVICE_SLOTS = 2, 3
"""Activations that an end of a link holds; a device has one microbatch more at a time."""


def most_link_slots(device: torch.device) -> int:
    """Return how many activations of the longest microbatch both links of a stage hold."""
    return 2 * (_CPU_SLOTS if device.type == "cpu" else _DEVICE_SLOTS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """What a formed stage tells the scheduler."""

    transport: str
    """In use on the outbound link; empty on the last stage."""
    rtt_us: int


class NotFormed(Exception):
    """A link could not be made."""

    def __init__(self, side: pb.FaultSide.ValueType, reason: str) -> None:
        """Say which one."""
        super().__init__(reason)
        self.side = side


class Links:
    """The links of one epoch; closed for good when the next one begins."""

    def __init__(
        self,
        *,
        join: pb.Join,
        transport: Transport,
        description: StageDescription,
        peer: PreferredPeer | None,
        on_fault: Callable[[pb.FaultSide.ValueType, str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Prepare for a Join; peer is where the next stage may be, None leaves that to the Join.

        spawn makes the links' tasks, and sees to it that a bug in one is not lost.
        """
        self.inbound: InboundSlots | None = None
        """None on the first stage, and before connect."""
        self.outbound: OutboundSlots | None = None
        """None on the last stage, and before connect."""
        self._join = join
        self._transport = transport
        self._description = description
        self._device = torch.device(description.device)
        self._num_slots = _CPU_SLOTS if self._device.type == "cpu" else _DEVICE_SLOTS
        self._peer = peer
        self._on_fault = on_fault
        self._spawn = spawn
        self._accept: asyncio.Task[Receiver] | None = None
        self._ends: list[Sender | Receiver] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def arm(self) -> None:
        """Begin to wait for the stage before; returns once its dial would be accepted."""
        if self._join.stage_index > 0:
            self._accept = asyncio.create_task(self._transport.accept(self._inbound_spec))
            await asyncio.sleep(0)

    async def connect(self) -> Formed:
        """Dial the next stage and wait for the one before.

        Raises:
            NotFormed: one of them cannot be reached.
        """
        formed = Formed(transport="", rtt_us=0)
        if self._join.stage_index < self._join.num_stages - 1:
            try:
                formed = await self._connect_outbound()
            except LinkError as error:
                raise NotFormed(pb.FAULT_SIDE_OUTBOUND, str(error)) from error
        if self._accept is not None:
            try:
                self._use_inbound(await self._accept)
            except LinkError as error:
                raise NotFormed(pb.FAULT_SIDE_INBOUND, str(error)) from error
        return formed

    async def _connect_outbound(self) -> Formed:
        """Dial the next stage."""
        sender = await self._dial(self._outbound_spec)
        self._ends.append(sender)
        self.outbound = OutboundSlots(
            sender,
            self._outbound_spec,
            num_slots=self._num_slots,
            device=self._device,
            on_fault=lambda error: self._on_fault(pb.FAULT_SIDE_OUTBOUND, str(error)),
            on_sent=metrics.sends_of(self._join.stage_index, sender.transport),
        )
        self._tasks.append(self._spawn(self.outbound.run()))
        return Formed(transport=sender.transport, rtt_us=sender.rtt_us)

    def _use_inbound(self, receiver: Receiver) -> None:
        """Begin to receive."""
        self._ends.append(receiver)
        self.inbound = InboundSlots(
            receiver,
            self._inbound_spec,
            num_slots=self._num_slots,
            device=self._device,
            on_fault=lambda error: self._on_fault(pb.FAULT_SIDE_INBOUND, str(error)),
        )
        self._tasks.append(self._spawn(self.inbound.run()))

    async def close(self) -> None:
        """Close both links and wake whoever waits on them."""
        for slots in (self.inbound, self.outbound):
            if slots is not None:
                slots.close()
        accepting = [] if self._accept is None else [self._accept]
        for task in (*self._tasks, *accepting):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        accepted = await asyncio.gather(*accepting, return_exceptions=True)
        unused = [end for end in accepted if not isinstance(end, BaseException)]
        for end in (*self._ends, *(end for end in unused if end not in self._ends)):
            await end.close()

    @property
    def _inbound_spec(self) -> LinkSpec:
        return self._spec(self._join.inbound_token, self._description.first_layer)

    @property
    def _outbound_spec(self) -> LinkSpec:
        return self._spec(self._join.outbound_token, self._description.last_layer)

    def _spec(self, token: bytes, boundary_layer: int) -> LinkSpec:
        """Say what both ends must agree on."""
        return LinkSpec(
            epoch=self._join.epoch,
            token=token,
            boundary_layer=boundary_layer,
            hidden_size=self._description.hidden_size,
            dtype=self._description.dtype,
            max_tokens=self._join.max_microbatch_tokens,
        )

    async def _dial(self, spec: LinkSpec) -> Sender:
        """Dial the preferred address if there is one, and the scheduler's."""
        address = self._join.next_address
        if self._peer is None:
            return await self._transport.dial(address, spec)
        return await self._peer.dial(self._transport, spec, address)
