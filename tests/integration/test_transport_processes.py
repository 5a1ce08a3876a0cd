"""Links between real processes: what they cost at rest, what they listen on, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation, LinkSpec, Transport
from chunkmesh.transports.create import create
from tests.eventually import eventually
from tests.forked_command import ForkedCommand
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


class Peer:
    """The other end, in a process of its own."""

    def __init__(self, log_path: Path, *arguments: str) -> None:
        """Start it."""
        self.process = ForkedCommand("transport-peer", *arguments, log_path=log_path)
        self._num_read = 0

    async def read_line(self, timeout_s: float = START_S) -> str:
        """Return the next line that is not a log line."""
        async with asyncio.timeout(timeout_s):
            while True:
                lines = self.process.output.splitlines(keepends=True)[self._num_read :]
                for line in lines:
                    if line.endswith("\n"):
                        self._num_read += 1
                        if "[info" not in line:
                            return line.strip()
                await asyncio.sleep(0.005)


class Peers:
    """Starts them, for one transport and one spec."""

    def __init__(self, folder: Path, name: str, spec: LinkSpec) -> None:
        """Start nothing yet; they write into folder."""
        self._folder = folder
        self._arguments = name, spec.token.hex()

    @contextlib.asynccontextmanager
    async def running(self, role: str, *rest: str) -> AsyncIterator[Peer]:
        """Run one; it is killed at the end."""
        name, token = self._arguments
        peer = Peer(self._folder / f"{role}.log", name, role, token, *rest)
        try:
            yield peer
        finally:
            peer.process.kill()
            peer.process.wait(START_S)


@pytest.fixture
def peers(tmp_path: Path, name: str, spec: LinkSpec) -> Peers:
    """Return who starts the test's peers."""
    return Peers(tmp_path, name, spec)


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


async def test_an_idle_link_costs_no_cpu(peers: Peers) -> None:
    """A stage waits most of its life: a link that polls would burn a core for nothing."""
    async with peers.running("receive") as receiving:
        address = await receiving.read_line()
        async with peers.running("send", address) as sending:
            assert await receiving.read_line() == "linked"
            assert await sending.read_line() == "linked"
            await asyncio.sleep(0.2)
            pids = [receiving.process.pid, sending.process.pid]
            before = [cpu_seconds(pid) for pid in pids]
            await asyncio.sleep(IDLE_S)
            used = [cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
    assert max(used) / IDLE_S <= MAX_IDLE_CPU


async def test_only_the_given_address_is_listened_on(
    peers: Peers, spec: LinkSpec, transport: Transport
) -> None:
    """The data plane has no security of its own, so it must not appear on other interfaces."""
    async with peers.running("receive") as receiving:
        await transport.dial(await receiving.read_line(), spec)
        assert await receiving.read_line() == "linked"
        assert listening_addresses(receiving.process.pid) == {"127.0.0.1"}


async def test_a_killed_sender_is_noticed(peers: Peers) -> None:
    """A receive must not wait for a stage that is dead."""
    async with peers.running("receive") as receiving:
        address = await receiving.read_line()
        async with peers.running("send", address) as sending:
            assert await receiving.read_line() == "linked"
            assert await sending.read_line() == "linked"
            sending.process.kill()
            begin = time.monotonic()
            assert (await receiving.read_line()).startswith("broken")
            assert time.monotonic() - begin < NOTICE_S


async def test_a_killed_receiver_is_noticed(
    peers: Peers, spec: LinkSpec, transport: Transport
) -> None:
    """A send that is under way when its receiver dies must fail, not block the stage."""
    async with peers.running("receive") as receiving:
        sender = await transport.dial(await receiving.read_line(), spec)
        payload = torch.zeros(spec.max_bytes, dtype=torch.uint8)
        receiving.process.send_signal(signal.SIGSTOP)
        sending = asyncio.create_task(sender.send(Activation(seq_no=0, num_tokens=1024), payload))
        await asyncio.sleep(0.1)
        assert not sending.done()
        receiving.process.kill()
        begin = time.monotonic()
        with pytest.raises(LinkError):
            await asyncio.wait_for(sending, 10)
        assert time.monotonic() - begin < NOTICE_S


async def test_a_stopped_receiver_hangs_nobody(
    peers: Peers, spec: LinkSpec, transport: Transport
) -> None:
    """A stopped process looks alive to the network: the caller's deadline must work."""
    async with peers.running("receive") as receiving:
        sender = await transport.dial(await receiving.read_line(), spec)
        payload = torch.zeros(spec.max_bytes, dtype=torch.uint8)
        receiving.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sender.send(Activation(seq_no=0, num_tokens=1024), payload), 0.3)
        await sender.close()
        assert time.monotonic() - begin < 0.3 + NOTICE_S


async def test_a_stopped_sender_hangs_nobody(
    peers: Peers, spec: LinkSpec, transport: Transport
) -> None:
    """The same for who waits for a stopped process."""
    accepting = asyncio.create_task(transport.accept(spec))
    async with peers.running("send", transport.address) as sending:
        receiver = await asyncio.wait_for(accepting, START_S)
        assert await sending.read_line() == "linked"
        sending.process.send_signal(signal.SIGSTOP)
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
