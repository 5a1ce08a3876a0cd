"""Activations between the GPUs of two processes: what arrives, in which order, at what cost."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable

import prometheus_client
import psutil
import pytest
import structlog
import torch

from chunkmesh.transports.base import LinkSpec, Transport
from chunkmesh.transports.create import create
from chunkmesh.transports.slots import OutboundSlots
from tests.gpu.link_peer import (
    DEADLINE_S,
    LONG_CYCLES,
    activation_of,
    link_spec,
    pattern,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

Devices = tuple[torch.device, torch.device]

START_S = 60.0
IDLE_S = 2.0
MAX_IDLE_CPU = 0.05
COUNT = 40


@contextlib.asynccontextmanager
async def peer(
    name: str, device: torch.device, spec: LinkSpec, count: int
) -> AsyncIterator[Process]:
    """Run the receiving stage; it is killed at the end."""
    arguments = (name, str(device), spec.token.hex(), str(count))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.gpu.link_peer", *arguments, stdout=PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def read_line(process: Process) -> str:
    """Return the next line that is not a log line."""
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        while True:
            line = (await process.stdout.readline()).decode().strip()
            if "[info" not in line:
                return line


class Upstream:
    """The sending stage, in the tests' process."""

    def __init__(self, device: torch.device, slots: OutboundSlots, transport: str) -> None:
        self.device = device
        self.slots = slots
        self.transport = transport

    async def compute(self, work: Callable[[], None]) -> None:
        """Run work in a compute thread, on a stream of its own."""

        def on_stream() -> None:
            torch.cuda.set_device(self.device)
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                work()

        await asyncio.to_thread(on_stream)

    def post(self, seq_no: int, *, cycles: int = 0) -> None:
        """Post the pattern of seq_no, written after a kernel of so many cycles."""
        activation = activation_of(seq_no)
        rows_TD = self.slots.acquire(activation.num_tokens, DEADLINE_S)
        expected_TD = pattern(activation, self.device)
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        rows_TD.copy_(expected_TD)
        self.slots.post(activation)


@contextlib.asynccontextmanager
async def linked(
    name: str, devices: Devices, count: int = COUNT
) -> AsyncIterator[tuple[Upstream, Process]]:
    """Link this process's first device to a peer's second one."""
    spec = link_spec(secrets.token_bytes(16))
    transport: Transport = create(name, "127.0.0.1:0", device=devices[0])
    await transport.start()
    async with peer(name, devices[1], spec, count) as process:
        sender = await transport.dial(await read_line(process), spec)
        assert await read_line(process) == "linked"
        slots = OutboundSlots(sender, spec, device=devices[0])
        running = asyncio.create_task(slots.run())
        try:
            yield Upstream(devices[0], slots, sender.transport), process
        finally:
            slots.close()
            running.cancel()
            await asyncio.wait([running])
            await transport.close()


@pytest.mark.parametrize("name", ["ucx", "grpc"])
async def test_activations_arrive_whole(name: str, devices: Devices) -> None:
    """Both stages work on slots while others travel: none may be read or written too early."""
    async with linked(name, devices) as (upstream, process):

        def post_all() -> None:
            for seq_no in range(COUNT):
                upstream.post(seq_no, cycles=LONG_CYCLES // 2)

        await upstream.compute(post_all)
        assert await read_line(process) == "right"


async def test_a_send_waits_for_its_kernel(devices: Devices) -> None:
    """Post returns while the slot's kernel has hardly begun; only finished numbers may leave."""
    async with linked("ucx", devices, count=3) as (upstream, process):

        def post_all() -> None:
            for seq_no in range(3):
                upstream.post(seq_no, cycles=50 * LONG_CYCLES)

        await upstream.compute(post_all)
        assert await read_line(process) == "right"


async def test_waiting_for_a_kernel_costs_no_cpu(devices: Devices) -> None:
    """A prefill chunk runs for a long time: who sends its result must sleep, not spin."""
    async with linked("ucx", devices, count=1) as (upstream, _):
        await upstream.compute(lambda: upstream.post(0, cycles=400 * LONG_CYCLES))
        await asyncio.sleep(0.1)
        before = psutil.Process().cpu_times()
        await asyncio.sleep(1.0)
        after = psutil.Process().cpu_times()
        assert upstream.slots.bytes_sent == 0
        assert after.user + after.system - before.user - before.system <= MAX_IDLE_CPU


async def test_the_transport_in_use_is_reported(devices: Devices) -> None:
    """Operators see at once whether activations go from GPU to GPU."""
    async with linked("ucx", devices) as (upstream, _):
        assert "cuda_ipc" in upstream.transport.split("+")


async def test_an_idle_link_costs_no_cpu(devices: Devices) -> None:
    """A receive into GPU memory is posted all the time, also when nothing comes for hours."""
    async with linked("ucx", devices) as (upstream, process):
        await upstream.compute(lambda: upstream.post(0))
        await asyncio.sleep(0.5)
        processes = [psutil.Process(), psutil.Process(process.pid)]
        before = [entry.cpu_times() for entry in processes]
        await asyncio.sleep(IDLE_S)
        after = [entry.cpu_times() for entry in processes]
        used = [
            end.user + end.system - begin.user - begin.system
            for begin, end in zip(before, after, strict=True)
        ]
        assert max(used) / IDLE_S <= MAX_IDLE_CPU


async def test_a_way_through_the_host_is_told(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without cuda_ipc activations still arrive, slowly; that must not stay unseen."""
    monkeypatch.setenv("UCX_TLS", "^cuda_ipc")
    name = "chunkmesh_gpu_links_through_host_total"
    before = prometheus_client.REGISTRY.get_sample_value(name) or 0.0
    with structlog.testing.capture_logs() as logs:
        async with linked("ucx", devices, count=4) as (upstream, process):

            def post_all() -> None:
                for seq_no in range(4):
                    upstream.post(seq_no)

            await upstream.compute(post_all)
            assert await read_line(process) == "right"
            assert "cuda_ipc" not in upstream.transport
    assert before + 1 == prometheus_client.REGISTRY.get_sample_value(name)
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [upstream.transport] == [entry["transport"] for entry in warnings]
