"""The data port: strangers get a reason code or silence, never the worker's time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator

import pytest

from chunkmesh.errors import ConfigError, LinkError
from chunkmesh.transports import handshake
from chunkmesh.transports.handshake import Hello, Refusal
from chunkmesh.transports.rendezvous import MAX_STRANGERS, Rendezvous, meet
from tests.transport_pairs import make_spec

TIMEOUT_S = 0.3


@pytest.fixture
async def rendezvous() -> AsyncIterator[Rendezvous]:
    """Listen on a free port with a short deadline."""
    rendezvous = Rendezvous("127.0.0.1", 0, timeout_s=TIMEOUT_S)
    await rendezvous.start()
    yield rendezvous
    rendezvous.close()


async def exchange(rendezvous: Rendezvous, data: bytes) -> bytes:
    """Send raw bytes and return all that comes back until the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rendezvous.port)
    writer.write(data)
    try:
        async with asyncio.timeout(20):
            return await reader.read(10_000)
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


def framed(message: bytes) -> bytes:
    """Put the two-byte length before a message."""
    return len(message).to_bytes(2, "little") + message


def refusal(reason: Refusal) -> bytes:
    """Return the whole answer of a refusal."""
    return framed(handshake.encode_refusal(reason))


async def test_addresses_are_swapped(rendezvous: Rendezvous) -> None:
    """Both ends need the other's UCX address to connect."""
    spec = make_spec()
    expecting = asyncio.create_task(rendezvous.expect(spec, b"downstream"))
    await asyncio.sleep(0)
    hello = Hello(spec=spec, address=b"upstream")
    line = await meet(f"127.0.0.1:{rendezvous.port}", hello, timeout_s=5)
    other = await expecting
    assert (line.peer_address, other.peer_address) == (b"downstream", b"upstream")
    line.close()
    await asyncio.wait_for(other.wait_end(), 20)
    other.close()


async def test_a_stranger_learns_only_a_code(rendezvous: Rendezvous) -> None:
    """Twelve bytes are all that a wrong token, epoch or boundary gets."""
    spec = make_spec(epoch=3)
    expecting = asyncio.create_task(rendezvous.expect(spec, b"secret address"))
    await asyncio.sleep(0)
    for change, reason in (
        ({"token": b"z" * 16}, Refusal.TOKEN),
        ({"epoch": 4}, Refusal.EPOCH),
        ({"boundary_layer": 1}, Refusal.BOUNDARY),
    ):
        offered = dataclasses.replace(spec, **change)
        hello = handshake.encode_hello(Hello(spec=offered, address=b""))
        assert await exchange(rendezvous, framed(hello)) == refusal(reason)
    assert not expecting.done()
    expecting.cancel()
    await asyncio.wait([expecting])


@pytest.mark.parametrize("data", [framed(b"GET / HTTP/1.1\r\n"), framed(b""), framed(b"x" * 4096)])
async def test_a_malformed_handshake_is_refused(rendezvous: Rendezvous, data: bytes) -> None:
    """Scanners reach every port."""
    assert await exchange(rendezvous, data) == refusal(Refusal.MALFORMED)


async def test_an_oversize_handshake_is_not_read(rendezvous: Rendezvous) -> None:
    """The length is refused before anything is buffered."""
    assert await exchange(rendezvous, b"\xff\xff" + b"x" * 100) == b""


async def test_a_silent_stranger_is_dropped(rendezvous: Rendezvous) -> None:
    """A connection that says nothing must not stay."""
    begin = asyncio.get_running_loop().time()
    assert await exchange(rendezvous, b"\x10") == b""
    assert asyncio.get_running_loop().time() - begin < TIMEOUT_S + 10


async def test_strangers_are_few_and_keep_nobody_out(rendezvous: Rendezvous) -> None:
    """Whoever opens many connections loses the oldest of them, and the right peer comes through."""
    spec = make_spec()
    expecting = asyncio.create_task(rendezvous.expect(spec, b"downstream"))
    connections = [
        await asyncio.open_connection("127.0.0.1", rendezvous.port)
        for _ in range(2 * MAX_STRANGERS)
    ]
    begin = asyncio.get_running_loop().time()
    for reader, _ in connections[:MAX_STRANGERS]:
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(1) == b""
    hello = Hello(spec=spec, address=b"upstream")
    line = await meet(f"127.0.0.1:{rendezvous.port}", hello, timeout_s=5)
    assert line.peer_address == b"downstream"
    assert asyncio.get_running_loop().time() - begin < TIMEOUT_S
    line.close()
    (await expecting).close()
    for _, writer in connections:
        writer.transport.abort()


async def test_a_token_opens_one_link_once(rendezvous: Rendezvous) -> None:
    """Whoever has read a token along the way comes too late with it."""
    spec = make_spec()
    expecting = asyncio.create_task(rendezvous.expect(spec, b"downstream"))
    await asyncio.sleep(0)
    hello = Hello(spec=spec, address=b"upstream")
    line = await meet(f"127.0.0.1:{rendezvous.port}", hello, timeout_s=5)
    other = await expecting
    with pytest.raises(LinkError, match="link refused: token"):
        await meet(f"127.0.0.1:{rendezvous.port}", hello, timeout_s=5)
    line.close()
    other.close()


async def test_a_worker_that_does_not_answer_is_a_link_error() -> None:
    """A stopped worker's kernel still accepts connections."""
    hello = Hello(spec=make_spec(), address=b"")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(LinkError, match="in time"):
            await meet(f"127.0.0.1:{port}", hello, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "127.0.0.1:port"])
async def test_no_worker_is_a_link_error(address: str) -> None:
    """The address is named, as --peer may be wrong."""
    with pytest.raises(LinkError, match=address):
        await meet(address, Hello(spec=make_spec(), address=b""), timeout_s=5)


async def test_a_port_in_use_is_a_config_error(rendezvous: Rendezvous) -> None:
    """A data port is never moved silently."""
    other = Rendezvous("127.0.0.1", rendezvous.port, timeout_s=TIMEOUT_S)
    with pytest.raises(ConfigError, match=str(rendezvous.port)):
        await other.start()
