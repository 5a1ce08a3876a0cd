"""The receiving stage of a link between GPUs, in a process of its own.

Usage: python -m tests.gpu.link_peer TRANSPORT DEVICE TOKEN COUNT
Prints its address, "linked", then after COUNT activations "right" or what was wrong, and stays
until it is killed. Its compute thread works on a stream of its own. Every activation is read only
after a long kernel, and its slot released before that kernel has ended.
"""

from __future__ import annotations

import asyncio
import sys

import torch

from chunkmesh.transports.base import Activation, LinkSpec
from chunkmesh.transports.create import create
from chunkmesh.transports.slots import InboundSlots

DEADLINE_S = 60.0
HIDDEN_SIZE = 4096
MAX_TOKENS = 2048
LONG_CYCLES = 20_000_000
"""Of a kernel that does nothing: about 10 ms."""


def link_spec(token: bytes) -> LinkSpec:
    """Return the spec of the tests' links: activations of at most 16 MiB."""
    return LinkSpec(
        epoch=1,
        token=token,
        boundary_layer=1,
        hidden_size=HIDDEN_SIZE,
        dtype=torch.bfloat16,
        max_tokens=MAX_TOKENS,
    )


def activation_of(seq_no: int) -> Activation:
    """Return an activation of one, two or all tokens, or of an odd number."""
    return Activation(seq_no=seq_no, num_tokens=(1, 2, MAX_TOKENS, 777)[seq_no % 4])


def pattern(activation: Activation, device: torch.device) -> torch.Tensor:
    """Return the contents of an activation, [T, D]; exact in bfloat16, other for each seq_no."""
    num_numbers = activation.num_tokens * HIDDEN_SIZE
    numbers = torch.arange(num_numbers, device=device) % 127 + activation.seq_no % 128
    return numbers.to(torch.bfloat16).view(-1, HIDDEN_SIZE)


def take_all(slots: InboundSlots, device: torch.device, count: int) -> str:
    """Take activations as a compute thread does; return "right", or what was not."""
    torch.cuda.set_device(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    wrong = []
    with torch.cuda.stream(stream):
        for seq_no in range(count):
            rows_TD = slots.take(seq_no, DEADLINE_S)
            torch.cuda._sleep(LONG_CYCLES)  # type: ignore[no-untyped-call]
            kept_TD = rows_TD.clone()
            slots.release(seq_no)
            expected_TD = pattern(activation_of(seq_no), device)
            wrong.append((kept_TD != expected_TD).sum())
        found = torch.stack(wrong).tolist()
    bad = [f"{seq_no}: {number} numbers" for seq_no, number in enumerate(found) if number]
    return f"wrong in {', '.join(bad)}" if bad else "right"


async def receive(name: str, device: torch.device, token: bytes, count: int) -> None:
    """Accept one link, take count activations and stay."""
    spec = link_spec(token)
    transport = create(name, "127.0.0.1:0", device=device)
    await transport.start()
    print(transport.address, flush=True)
    slots = InboundSlots(await transport.accept(spec), spec, device=device)
    print("linked", flush=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(slots.run())
        print(await asyncio.to_thread(take_all, slots, device, count), flush=True)


def main() -> None:
    """Run the end that the arguments describe."""
    name, device, token, count = sys.argv[1:]
    asyncio.run(receive(name, torch.device(device), bytes.fromhex(token), int(count)))


if __name__ == "__main__":
    main()
