"""What a data-plane transport offers: one-way links that carry activations between stages.

Links are new in every epoch. A worker listens once; the stage before it dials with a one-time
token. Nothing here decides about requests.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch

TOKEN_BYTES = 16
HANDSHAKE_TIMEOUT_S = 10.0
"""Time for a peer to answer a dial and to greet."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """What both ends of a link must agree on; compared in the handshake."""

    epoch: int
    """Epoch of the route, > 0."""
    token: bytes
    """One-time pairing token, 16 bytes."""
    boundary_layer: int
    """Last layer of the sender + 1 = first layer of the receiver."""
    hidden_size: int
    """Elements of an activation row."""
    dtype: torch.dtype
    """Element type of the activation."""
    max_tokens: int
    """Most rows of one activation."""

    @property
    def max_bytes(self) -> int:
        """Most payload bytes of one activation."""
        return self.max_tokens * self.hidden_size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Says which activation a payload is; sent as a 64-byte header before it."""

    seq_no: int
    """Order in the epoch, from 0."""
    num_tokens: int
    """0 < num_tokens <= max_tokens of the link."""


class Sender(Protocol):
    """The sending end of one link. One send at a time."""

    transport: str
    """Transport really in use, as the endpoint reports it, such as tcp."""
    rtt_us: int
    """Round trip of the handshake, in microseconds."""

    async def send(self, activation: Activation, payload: torch.Tensor) -> None:
        """Send one activation: payload is flat uint8, exactly its bytes, unchanged until return.

        seq_no goes from 0 without gaps. Cancelling breaks the link.

        Raises:
            LinkError: the peer is gone or broke the protocol; the link is then closed.
        """
        ...

    async def close(self) -> None:
        """Close the link; a pending send raises LinkError."""
        ...


class Receiver(Protocol):
    """The receiving end of one link. One receive at a time."""

    async def receive(self, into: torch.Tensor) -> Activation:
        """Wait for the next activation; its payload is then at the front of into.

        into is flat uint8 of at least the link's max_bytes and belongs to the link until return.
        Cancelling loses nothing: the activation comes with the next receive. A payload that is
        already being written may go on into a cancelled receive's buffer until then.

        Raises:
            LinkError: the peer is gone, or sent anything but a valid activation of this epoch.
        """
        ...

    async def close(self) -> None:
        """Close the link; a pending receive raises LinkError."""
        ...


class Transport(Protocol):
    """One worker's way to its neighbours."""

    name: str
    """memory, grpc or ucx."""
    address: str
    """Where this worker listens, HOST:PORT (of any form for memory); known after start."""

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address cannot be bound; names it.
        """
        ...

    async def accept(self, spec: LinkSpec) -> Receiver:
        """Wait until the stage before has dialled with this spec; others are turned away.

        Its token is armed from the first time that it suspends until it ends. Cancelling disarms.

        Raises:
            LinkError: the right stage came, but its link broke at once.
        """
        ...

    async def dial(self, address: str, spec: LinkSpec) -> Sender:
        """Connect to a stage that accepts this spec.

        Raises:
            LinkError: nobody answers there in time, or it does not accept this spec.
        """
        ...

    async def close(self) -> None:
        """Stop listening and close every link."""
        ...
