"""How long an activation takes from stage to stage, for each transport and size.

round trip: a payload there and 8 bytes back, event loop to event loop.
hand-over: from post in one compute thread until take returns in the other, links at rest before it.
grpc and ucx run in two processes on loopback, memory in one.
Run: python -m tests.bench.transports [NAME ...]
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection

import torch

from chunkmesh.transports.base import Activation, LinkSpec, Receiver, Sender, Transport
from chunkmesh.transports.create import create
from chunkmesh.transports.memory import MemoryNetwork
from chunkmesh.transports.slots import InboundSlots, OutboundSlots

SIZES = {"8 B": (8, 200), "72 KiB": (72 * 1024, 200), "4 MiB": (4 * 1024 * 1024, 50)}
ROUNDS = 3
WARM_UP = 10
REST_S = 0.003
DEADLINE_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What one side has: a link to the other side and one back."""

    sender: Sender
    receiver: Receiver


def spec_of(num_bytes: int, epoch: int, *, back: bool) -> LinkSpec:
    """Return the spec of the link there, or of the 8-byte link back."""
    return LinkSpec(
        epoch=epoch,
        token=(b"back" if back else b"there").ljust(8) + epoch.to_bytes(8, "little"),
        boundary_layer=1,
        hidden_size=(8 if back else num_bytes) // 4,
        dtype=torch.float32,
        max_tokens=1,
    )


async def upstream(transport: Transport, peer: str, num_bytes: int, epoch: int) -> Ends:
    """Dial the link there and accept the one back."""
    back = asyncio.create_task(transport.accept(spec_of(num_bytes, epoch, back=True)))
    await asyncio.sleep(0.05)
    sender = await transport.dial(peer, spec_of(num_bytes, epoch, back=False))
    return Ends(sender=sender, receiver=await back)


async def downstream(transport: Transport, peer: str, num_bytes: int, epoch: int) -> Ends:
    """Accept the link there, then dial the one back."""
    receiver = await transport.accept(spec_of(num_bytes, epoch, back=False))
    sender = await transport.dial(peer, spec_of(num_bytes, epoch, back=True))
    return Ends(sender=sender, receiver=receiver)


async def measure_there(
    transport: Transport, peer: str, num_bytes: int, count: int, epoch: int
) -> tuple[list[float], list[float]]:
    """Return round trips in seconds and the stamps of posts."""
    ends = await upstream(transport, peer, num_bytes, epoch)
    payload = torch.zeros(num_bytes, dtype=torch.uint8)
    into = torch.zeros(8, dtype=torch.uint8)
    trips = []
    for seq_no in range(count):
        begin = time.perf_counter()
        await ends.sender.send(Activation(seq_no=seq_no, num_tokens=1), payload)
        await ends.receiver.receive(into)
        trips.append(time.perf_counter() - begin)
    slots = OutboundSlots(ends.sender, spec_of(num_bytes, epoch, back=False))
    running = asyncio.create_task(slots.run())

    def post_all() -> list[float]:
        stamps = []
        for seq_no in range(count, 2 * count):
            slots.acquire(1, DEADLINE_S)
            time.sleep(REST_S)
            stamps.append(time.perf_counter())
            slots.post(Activation(seq_no=seq_no, num_tokens=1))
        return stamps

    stamps = await asyncio.to_thread(post_all)
    await ends.receiver.receive(into)
    running.cancel()
    await asyncio.wait([running])
    await ends.sender.close()
    await ends.receiver.close()
    return trips, stamps


async def measure_here(
    transport: Transport, peer: str, num_bytes: int, count: int, epoch: int
) -> list[float]:
    """Answer the round trips and return the stamps of takes."""
    ends = await downstream(transport, peer, num_bytes, epoch)
    into = torch.zeros(num_bytes, dtype=torch.uint8)
    answer = torch.zeros(8, dtype=torch.uint8)
    for seq_no in range(count):
        await ends.receiver.receive(into)
        await ends.sender.send(Activation(seq_no=seq_no, num_tokens=1), answer)
    slots = InboundSlots(ends.receiver, spec_of(num_bytes, epoch, back=False))
    running = asyncio.create_task(slots.run())

    def take_all() -> list[float]:
        stamps = []
        for seq_no in range(count, 2 * count):
            slots.take(seq_no, DEADLINE_S)
            stamps.append(time.perf_counter())
            slots.release(seq_no)
        return stamps

    stamps = await asyncio.to_thread(take_all)
    await ends.sender.send(Activation(seq_no=count, num_tokens=1), answer)
    await asyncio.wait([running])
    await ends.sender.close()
    await ends.receiver.close()
    return stamps


def serve(name: str, pipe: Connection) -> None:
    """Run the far side of one transport in a process of its own."""

    async def answer() -> None:
        transport = create(name, "127.0.0.1:0")
        await transport.start()
        pipe.send(transport.address)
        peer = await asyncio.to_thread(pipe.recv)
        while (job := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(await measure_here(transport, peer, *job))
        await transport.close()

    asyncio.run(answer())


class Bench:
    """One transport under measurement."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.trips: dict[str, list[float]] = {size: [] for size in SIZES}
        self.handovers: dict[str, list[float]] = {size: [] for size in SIZES}

    def record(self, size: str, there: tuple[list[float], list[float]], takes: list[float]) -> None:
        """Keep one round without its warm-up."""
        trips, posts = there
        self.trips[size] += trips[WARM_UP:]
        delays = [take - post for post, take in zip(posts, takes, strict=True)]
        self.handovers[size] += delays[WARM_UP:]

    def table_row(self, size: str) -> str:
        """Return medians and bests in microseconds."""
        cells = []
        for values in (self.trips[size], self.handovers[size]):
            cells += [statistics.median(values) * 1e6, min(values) * 1e6]
        return f"{self.name:8}{size:>8}" + "".join(f"{cell:>12.0f}" for cell in cells)


async def run_memory(bench: Bench, size: str) -> None:
    """Measure one round of the memory transport, both sides in this process."""
    network = MemoryNetwork()
    near, far = (create("memory", address, network=network) for address in ("near", "far"))
    await near.start()
    await far.start()
    bench.epoch += 1
    job = (*SIZES[size], bench.epoch)
    there, takes = await asyncio.gather(
        measure_there(near, "far", *job), measure_here(far, "near", *job)
    )
    bench.record(size, there, takes)
    await near.close()
    await far.close()


async def run_remote(bench: Bench, size: str) -> None:
    """Measure one round of grpc or ucx against a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve, args=(bench.name, theirs))
    process.start()
    near = create(bench.name, "127.0.0.1:0")
    await near.start()
    peer = await asyncio.to_thread(pipe.recv)
    pipe.send(near.address)
    bench.epoch += 1
    job = (*SIZES[size], bench.epoch)
    pipe.send(job)
    await asyncio.sleep(0.2)
    there = await measure_there(near, peer, *job)
    takes = await asyncio.to_thread(pipe.recv)
    bench.record(size, there, takes)
    pipe.send(None)
    await asyncio.to_thread(process.join, DEADLINE_S)
    await near.close()


def main() -> None:
    """Print the table; transports are interleaved, so that a busy moment hits all of them."""
    benches = [Bench(name) for name in sys.argv[1:] or ("memory", "grpc", "ucx")]
    for _ in range(ROUNDS):
        for size in SIZES:
            for bench in benches:
                runner = run_memory if bench.name == "memory" else run_remote
                asyncio.run(runner(bench, size))
    columns = ("trip median", "trip best", "hand-over", "best")
    print(f"{'us':8}{'':>8}" + "".join(f"{column:>12}" for column in columns))
    for bench in benches:
        for size in SIZES:
            print(bench.table_row(size))


if __name__ == "__main__":
    main()
