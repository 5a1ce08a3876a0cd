"""How long an activation takes from GPU to GPU, between two processes.

round trip: a payload of the GPU there and 8 bytes of the CPU back, event loop to event loop.
hand-over: from post in one compute thread until take returns in the other, links at rest before it.
Run: python -m tests.bench.gpu_links [--json FILE] [--devices 0,1] [--transport ucx]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from chunkmesh.transports.base import Activation, Transport
from chunkmesh.transports.create import create
from chunkmesh.transports.slots import InboundSlots, OutboundSlots
from tests.bench.transports import DEADLINE_S, REST_S, WARM_UP, downstream, spec_of, upstream

SIZES = {"8 KiB": (8 << 10, 200), "1 MiB": (1 << 20, 100), "32 MiB": (32 << 20, 100),
         "256 MiB": (256 << 20, 50)}  # fmt: skip
IDLE_S = 2.0


async def send_all(
    transport: Transport, peer: str, num_bytes: int, count: int, device: torch.device
) -> tuple[list[float], list[float], str]:
    """Return round trips in seconds, the stamps of posts, and the transport in use."""
    ends = await upstream(transport, peer, num_bytes, num_bytes)
    payload = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    into = torch.zeros(8, dtype=torch.uint8)
    torch.cuda.synchronize(device)
    trips = []
    for seq_no in range(count):
        begin = time.perf_counter()
        await ends.sender.send(Activation(seq_no=seq_no, num_tokens=1), payload)
        await ends.receiver.receive(into)
        trips.append(time.perf_counter() - begin)
    slots = OutboundSlots(ends.sender, spec_of(num_bytes, num_bytes, back=False), device=device)
    running = asyncio.create_task(slots.run())

    def post_all() -> list[float]:
        torch.cuda.set_device(device)
        stamps = []
        for seq_no in range(count, 2 * count):
            slots.acquire(1, DEADLINE_S).fill_(1.0)
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
    return trips, stamps, ends.sender.transport


async def receive_all(
    transport: Transport, peer: str, num_bytes: int, count: int, device: torch.device
) -> tuple[list[float], float]:
    """Answer the round trips; return the stamps of takes, and the idle use of CPU."""
    ends = await downstream(transport, peer, num_bytes, num_bytes)
    into = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    answer = torch.zeros(8, dtype=torch.uint8)
    for seq_no in range(count):
        await ends.receiver.receive(into)
        await ends.sender.send(Activation(seq_no=seq_no, num_tokens=1), answer)
    slots = InboundSlots(ends.receiver, spec_of(num_bytes, num_bytes, back=False), device=device)
    running = asyncio.create_task(slots.run())

    def take_all() -> list[float]:
        torch.cuda.set_device(device)
        stamps = []
        for seq_no in range(count, 2 * count):
            slots.take(seq_no, DEADLINE_S)
            stamps.append(time.perf_counter())
            slots.release(seq_no)
        return stamps

    stamps = await asyncio.to_thread(take_all)
    begin = sum(os.times()[:2])
    await asyncio.sleep(IDLE_S)
    idle = (sum(os.times()[:2]) - begin) / IDLE_S
    await ends.sender.send(Activation(seq_no=count, num_tokens=1), answer)
    await asyncio.wait([running])
    await ends.sender.close()
    await ends.receiver.close()
    return stamps, idle


def serve(name: str, device: torch.device, pipe: Connection) -> None:
    """Run the receiving stage in a process of its own."""

    async def answer() -> None:
        transport = create(name, "127.0.0.1:0", device=device)
        await transport.start()
        pipe.send(transport.address)
        peer = await asyncio.to_thread(pipe.recv)
        while (job := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(await receive_all(transport, peer, job[0], job[1], device))
        await transport.close()

    asyncio.run(answer())


async def measure(
    name: str, devices: tuple[torch.device, ...], pipe: Connection
) -> list[dict[str, object]]:
    """Return one row for each size."""
    transport = create(name, "127.0.0.1:0", device=devices[0])
    await transport.start()
    peer = await asyncio.to_thread(pipe.recv)
    pipe.send(transport.address)
    rows: list[dict[str, object]] = []
    for size, job in SIZES.items():
        pipe.send(job)
        await asyncio.sleep(0.2)
        trips, posts, used = await send_all(transport, peer, *job, devices[0])
        takes, idle = await asyncio.to_thread(pipe.recv)
        delays = [take - post for post, take in zip(posts, takes, strict=True)]
        trip, delay = (statistics.median(values[WARM_UP:]) for values in (trips, delays))
        rows.append({
            "size": size, "devices": [str(device) for device in devices], "transport": used,
            "trip_us": trip * 1e6, "trip_best_us": min(trips) * 1e6,
            "gb_per_s": job[0] / trip / 1e9,
            "handover_us": delay * 1e6, "handover_best_us": min(delays) * 1e6,
            "idle_cpu": idle, "threads": threading.active_count(),
        })  # fmt: skip
        print(
            f"{size:>8}  {used:32} trip {trip * 1e6:7.0f} us {job[0] / trip / 1e9:6.1f} GB/s  "
            f"hand-over {delay * 1e6:7.0f} us  idle CPU {idle:.1%}",
            flush=True,
        )
    pipe.send(None)
    await transport.close()
    return rows


def main() -> None:
    """Print a table and write it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--devices", default="0,1")
    parser.add_argument("--transport", default="ucx")
    arguments = parser.parse_args()
    devices = tuple(torch.device("cuda", int(index)) for index in arguments.devices.split(","))
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve, args=(arguments.transport, devices[1], theirs))
    process.start()
    try:
        rows = asyncio.run(measure(arguments.transport, devices, pipe))
        process.join(DEADLINE_S)
    finally:
        process.kill()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
