"""Links between real processes: what they cost at rest, what they listen on, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import psutil
import pytest
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation, LinkSpec, Transport
from chunkmesh.transports.create import create
from tests.eventually import eventually
from tests.transport_peer import peer_spec

START_S = 60.0
NOTICE_S = 10.0
"""A socket that the kernel closes is seen in milliseconds; a keepalive would take far longer."""
IDLE_S = 2.0
MAX_IDLE_CPU = 0.05


@pytest.fixture(params=["grpc", "ucx"])
def name(request: pytest.FixtureRequest) -> str:
    """Name the transport under test."""
    value: str = request.param
    return value


@pytest.fixture
def spec() -> LinkSpec:
    """Return the spec that the peer process expects."""
    return peer_spec(secrets.token_bytes(16))


@pytest.fixture
async def transport(name: str) -> AsyncIterator[Transport]:
    """Start this process's own transport."""
    transport = create(name, "127.0.0.1:0")
    await transport.start()
    yield transport
    async with asyncio.timeout(NOTICE_S):
        await transport.close()


@contextlib.asynccontextmanager
async def peer(name: str, spec: LinkSpec, role: str, *rest: str) -> AsyncIterator[Process]:
    """Run the other end in a process; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.transport_peer", name, role, spec.token.hex(), *rest,
        stdout=PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def read_line(process: Process, timeout_s: float = START_S) -> str:
    """Return the next line that is not a log line."""
    assert process.stdout is not None
    async with asyncio.timeout(timeout_s):
        while True:
            line = (await process.stdout.readline()).decode().strip()
            if "[info" not in line:
                return line


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def listening_addresses(pid: int) -> set[str]:
    """Return the IP addresses that a process listens on."""
    connections = psutil.Process(pid).net_connections("inet")
    return {
        entry.laddr.ip.removeprefix("::ffff:")
        for entry in connections
        if entry.status == psutil.CONN_LISTEN
    }


async def test_an_idle_link_costs_no_cpu(name: str, spec: LinkSpec) -> None:
    """A stage waits most of its life: a link that polls would burn a core for nothing."""
    async with peer(name, spec, "receive") as receiving:
        address = await read_line(receiving)
        async with peer(name, spec, "send", address) as sending:
            assert await read_line(receiving) == "linked"
            assert await read_line(sending) == "linked"
            await asyncio.sleep(0.2)
            pids = [receiving.pid, sending.pid]
            before = [cpu_seconds(pid) for pid in pids]
            await asyncio.sleep(IDLE_S)
            used = [cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
    assert max(used) / IDLE_S <= MAX_IDLE_CPU


async def test_only_the_given_address_is_listened_on(
    name: str, spec: LinkSpec, transport: Transport
) -> None:
    """The data plane has no security of its own, so it must not appear on other interfaces."""
    async with peer(name, spec, "receive") as receiving:
        await transport.dial(await read_line(receiving), spec)
        assert await read_line(receiving) == "linked"
        assert listening_addresses(receiving.pid) == {"127.0.0.1"}


async def test_a_killed_sender_is_noticed(name: str, spec: LinkSpec) -> None:
    """A receive must not wait for a stage that is dead."""
    async with peer(name, spec, "receive") as receiving:
        address = await read_line(receiving)
        async with peer(name, spec, "send", address) as sending:
            assert await read_line(receiving) == "linked"
            assert await read_line(sending) == "linked"
            sending.kill()
            begin = time.monotonic()
            assert (await read_line(receiving)).startswith("broken")
            assert time.monotonic() - begin < NOTICE_S


async def test_a_killed_receiver_is_noticed(
    name: str, spec: LinkSpec, transport: Transport
) -> None:
    """A send that is under way when its receiver dies must fail, not block the stage."""
    async with peer(name, spec, "receive") as receiving:
        sender = await transport.dial(await read_line(receiving), spec)
        payload = torch.zeros(spec.max_bytes, dtype=torch.uint8)
        receiving.send_signal(signal.SIGSTOP)
        sending = asyncio.create_task(sender.send(Activation(seq_no=0, num_tokens=1024), payload))
        await asyncio.sleep(0.1)
        assert not sending.done()
        receiving.kill()
        begin = time.monotonic()
        with pytest.raises(LinkError):
            await asyncio.wait_for(sending, 10)
        assert time.monotonic() - begin < NOTICE_S


async def test_a_stopped_receiver_hangs_nobody(
    name: str, spec: LinkSpec, transport: Transport
) -> None:
    """A stopped process looks alive to the network: the caller's deadline must work."""
    async with peer(name, spec, "receive") as receiving:
        sender = await transport.dial(await read_line(receiving), spec)
        payload = torch.zeros(spec.max_bytes, dtype=torch.uint8)
        receiving.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sender.send(Activation(seq_no=0, num_tokens=1024), payload), 0.3)
        await sender.close()
        assert time.monotonic() - begin < 0.3 + NOTICE_S


async def test_a_stopped_sender_hangs_nobody(
    name: str, spec: LinkSpec, transport: Transport
) -> None:
    """The same for who waits for a stopped process."""
    accepting = asyncio.create_task(transport.accept(spec))
    async with peer(name, spec, "send", transport.address) as sending:
        receiver = await asyncio.wait_for(accepting, START_S)
        assert await read_line(sending) == "linked"
        sending.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        into = torch.empty(spec.max_bytes, dtype=torch.uint8)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiver.receive(into), 0.3)
        await receiver.close()
        assert time.monotonic() - begin < 0.3 + NOTICE_S


async def test_many_epochs_leave_nothing_behind(name: str, transport: Transport) -> None:
    """A mesh that re-forms its route for weeks must not run out of descriptors."""
    downstream = create(name, "127.0.0.1:0")
    await downstream.start()
    process = psutil.Process()
    counts = []
    for epoch in range(1, 31):
        spec = peer_spec(secrets.token_bytes(16))
        accepting = asyncio.create_task(downstream.accept(spec))
        await asyncio.sleep(0)
        sender = await transport.dial(downstream.address, spec)
        receiver = await accepting
        await sender.close()
        await receiver.close()
        if epoch >= 10:
            await asyncio.sleep(0.02)
            counts.append(process.num_fds())
    await eventually(lambda: process.num_fds() <= max(counts[:5]))
    await downstream.close()
