"""Two transports of a kind that can reach each other, and links between them, for tests."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import secrets

import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import LinkSpec, Receiver, Sender, Transport
from chunkmesh.transports.create import create
from chunkmesh.transports.memory import MemoryNetwork

DEADLINE_S = 30.0

_NAMES = itertools.count()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two workers; upstream dials downstream."""

    upstream: Transport
    downstream: Transport


async def start_pair(name: str) -> Pair:
    """Start two transports of one kind on free ports."""
    network = MemoryNetwork()
    transports = []
    for _ in range(2):
        address = f"worker-{next(_NAMES)}" if name == "memory" else "127.0.0.1:0"
        transport = create(name, address, network=network)
        await transport.start()
        transports.append(transport)
    return Pair(upstream=transports[0], downstream=transports[1])


async def close_pair(pair: Pair) -> None:
    """Close both."""
    await pair.upstream.close()
    await pair.downstream.close()


def make_spec(
    *,
    epoch: int = 1,
    hidden_size: int = 8,
    max_tokens: int = 16,
    dtype: torch.dtype = torch.float32,
) -> LinkSpec:
    """Return a spec with a fresh token."""
    return LinkSpec(
        epoch=epoch,
        token=secrets.token_bytes(16),
        boundary_layer=15,
        hidden_size=hidden_size,
        dtype=dtype,
        max_tokens=max_tokens,
    )


async def connect(pair: Pair, spec: LinkSpec) -> tuple[Sender, Receiver]:
    """Make a link from upstream to downstream."""
    accepting = asyncio.create_task(pair.downstream.accept(spec))
    await asyncio.sleep(0)
    sender = await pair.upstream.dial(pair.downstream.address, spec)
    return sender, await accepting


def make_payload(spec: LinkSpec, num_tokens: int, fill: int) -> torch.Tensor:
    """Return the payload of an activation with bytes that depend on fill."""
    num_bytes = num_tokens * spec.hidden_size * spec.dtype.itemsize
    generator = torch.Generator().manual_seed(fill)
    return torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, generator=generator)


def new_buffer(spec: LinkSpec) -> torch.Tensor:
    """Return a receive buffer full of a value that no payload ends with by chance."""
    return torch.full((spec.max_bytes,), 255, dtype=torch.uint8)


async def transmit(sender: Sender, pair: Pair, data: bytes, payload: torch.Tensor) -> None:
    """Send any header and payload past the sender's own checks; its failure is not judged."""
    arguments = (0, data, payload) if pair.upstream.name == "ucx" else (data, payload)
    try:
        await sender._transmit(*arguments)  # type: ignore[attr-defined]
    except LinkError:
        return
