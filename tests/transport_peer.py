"""One end of a link in a process of its own, for tests that kill, stop or watch it.

Usage: python -m tests.transport_peer NAME receive TOKEN
       python -m tests.transport_peer NAME send TOKEN ADDRESS
The receiving end prints its address, then "linked", then "broken" and why when the link ends.
"""

from __future__ import annotations

import asyncio
import sys

import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import LinkSpec
from chunkmesh.transports.create import create


def peer_spec(token: bytes) -> LinkSpec:
    """Return the spec of links with a peer process."""
    return LinkSpec(
        epoch=1,
        token=token,
        boundary_layer=15,
        hidden_size=4096,
        dtype=torch.bfloat16,
        max_tokens=1024,
    )


async def receive(name: str, spec: LinkSpec) -> None:
    """Accept one link and receive until it breaks."""
    transport = create(name, "127.0.0.1:0")
    await transport.start()
    print(transport.address, flush=True)
    receiver = await transport.accept(spec)
    print("linked", flush=True)
    into = torch.empty(spec.max_bytes, dtype=torch.uint8)
    try:
        while True:
            await receiver.receive(into)
    except LinkError as error:
        print(f"broken {error}", flush=True)
    await transport.close()


async def send(name: str, spec: LinkSpec, address: str) -> None:
    """Dial, then stay idle."""
    transport = create(name, "127.0.0.1:0")
    await transport.start()
    await transport.dial(address, spec)
    print("linked", flush=True)
    await asyncio.sleep(60)


def main() -> None:
    """Run the end that the arguments name."""
    name, role, token, *rest = sys.argv[1:]
    spec = peer_spec(bytes.fromhex(token))
    asyncio.run(receive(name, spec) if role == "receive" else send(name, spec, rest[0]))


if __name__ == "__main__":
    main()
