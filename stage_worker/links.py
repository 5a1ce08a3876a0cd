"""Forms a worker's two links in a new epoch: the one that it accepts and the one that it dials."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import LinkSpec, Receiver, Sender, Transport
from chunkmesh.transports.slots import InboundSlots, OutboundSlots
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.stage import StageDescription

_log = structlog.get_logger(__name__)
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


class Links:
    """The links of one epoch; closed for good when the next one begins."""

    def __init__(
        self,
        *,
        join: pb.Join,
        transport: Transport,
        description: StageDescription,
        peer: str | None,
        on_fault: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Prepare for a Join; peer is the preferred address of the next stage.

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
            LinkError: the next stage cannot be reached.
        """
        formed = Formed(transport="", rtt_us=0)
        if self._join.stage_index < self._join.num_stages - 1:
            sender = await self._dial(self._outbound_spec)
            self._ends.append(sender)
            self.outbound = OutboundSlots(
                sender,
                self._outbound_spec,
                num_slots=self._num_slots,
                device=self._device,
                on_fault=self._fault,
            )
            self._tasks.append(self._spawn(self.outbound.run()))
            formed = Formed(transport=sender.transport, rtt_us=sender.rtt_us)
        if self._accept is not None:
            receiver = await self._accept
            self._ends.append(receiver)
            self.inbound = InboundSlots(
                receiver,
                self._inbound_spec,
                num_slots=self._num_slots,
                device=self._device,
                on_fault=self._fault,
            )
            self._tasks.append(self._spawn(self.inbound.run()))
        return formed

    async def close(self) -> None:
        """Close both links and wake whoever waits on them."""
        for slots in (self.inbound, self.outbound):
            if slots is not None:
                slots.close()
        tasks: list[asyncio.Task[None] | asyncio.Task[Receiver]] = [*self._tasks]
        if self._accept is not None:
            tasks.append(self._accept)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in self._ends:
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
        """Dial the preferred address, and the scheduler's if that is not the next stage."""
        address = self._join.next_address
        if self._peer is not None and self._peer != address:
            try:
                return await self._transport.dial(self._peer, spec)
            except LinkError as error:
                _log.warning(
                    "preferred peer is not the next stage",
                    peer=self._peer,
                    reason=str(error),
                    using=address,
                )
        return await self._transport.dial(address, spec)

    def _fault(self, error: LinkError) -> None:
        """Report that a link broke by itself."""
        self._on_fault(str(error))
