"""The data port of a UCX worker: a small TCP server that pairs links and swaps UCX addresses.

It speaks only the handshake, each message behind a two-byte length. The TCP connection of an
accepted link then stays open without traffic: its end tells at once that the peer is gone, also
where UCX itself would notice only by its slow keep-alive.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import ConfigError, LinkError
from chunkmesh.ports import bind
from chunkmesh.transports import handshake
from chunkmesh.transports.base import LinkSpec
from chunkmesh.transports.handshake import Hello, Refusal
from chunkmesh.transports.pairing import Pairing

MAX_STRANGERS = 16
"""Connections that may be in their handshake at once: one more ends the oldest, so that whoever
holds many open keeps nobody out, for the right peer's handshake takes a moment."""

_LENGTH_BYTES = 2
_log = structlog.get_logger(__name__)


class Line:
    """The TCP connection of a paired link. Idle after the handshake."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float
    ) -> None:
        self.peer_address = b""
        """Where the peer is reached inside UCX."""
        self._reader = reader
        self._writer = writer
        self._timeout_s = timeout_s

    async def read_message(self) -> bytes:
        """Return the next message.

        Raises:
            LinkError: too long, cut off or late.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "little")
                if length > handshake.MAX_BYTES:
                    raise LinkError(f"handshake of {length} bytes, limit {handshake.MAX_BYTES}")
                return await self._reader.readexactly(length)
        except TimeoutError as error:
            raise LinkError("the peer did not finish the handshake in time") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LinkError("the peer ended the handshake") from error

    async def write_message(self, message: bytes) -> None:
        """Send a message.

        Raises:
            LinkError: the peer is gone or does not read.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                self._writer.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
                await self._writer.drain()
        except OSError as error:
            raise LinkError("the peer ended the handshake") from error

    async def wait_end(self) -> None:
        """Return when the peer has closed, died or broken the silence."""
        try:
            await self._reader.read(1)
        except OSError:
            return

    def close(self) -> None:
        """Close without waiting for the peer."""
        self._writer.transport.abort()


class Rendezvous:
    """Listens on the data port of one worker and pairs its links."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        self.host = host
        self.port = port
        """The bound port after start."""
        self._timeout_s = timeout_s
        self._pairing: Pairing[Line] = Pairing()
        self._strangers: dict[asyncio.Task[None], Line] = {}
        """Those in their handshake, the oldest first."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address cannot be bound.
        """
        listen = Listen(host=self.host, port=self.port, flag="--data-port", explicit=True)
        self._server = await asyncio.start_server(self._meet, sock=bind(listen))
        self.port = self._server.sockets[0].getsockname()[1]

    async def expect(self, spec: LinkSpec, address: bytes) -> Line:
        """Wait for who dials with spec; answer with our UCX address. Cancelling disarms."""
        return await self._pairing.expect(spec, address)

    def close(self) -> None:
        """Stop listening; waits end with LinkError. Paired lines stay open."""
        if self._server is not None:
            self._server.close()
        self._pairing.close()
        for task in self._strangers:
            task.cancel()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one incoming connection; never raises."""
        line = Line(reader, writer, self._timeout_s)
        task = asyncio.current_task()
        if task is None:
            line.close()
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).close()
        self._strangers[task] = line
        paired = False
        try:
            paired = await self._pair(line)
        except LinkError as error:
            _log.warning("link handshake failed", error=str(error))
        finally:
            self._strangers.pop(task, None)
            if not paired:
                line.close()

    async def _pair(self, line: Line) -> bool:
        data = await line.read_message()
        try:
            hello = handshake.decode_hello(data)
        except LinkError as error:
            _log.warning("link refused", reason="malformed", error=str(error))
            await line.write_message(handshake.encode_refusal(Refusal.MALFORMED))
            return False
        refusal = self._pairing.judge(hello.spec)
        if refusal is not None:
            _log.warning("link refused", reason=refusal.name.lower(), epoch=hello.spec.epoch)
            await line.write_message(handshake.encode_refusal(refusal))
            return False
        line.peer_address = hello.address
        address = self._pairing.claim(hello.spec.token, line)
        await line.write_message(handshake.encode_acceptance(address))
        return True


async def meet(address: str, hello: Hello, *, timeout_s: float) -> Line:
    """Dial the data port of another worker.

    Raises:
        LinkError: nobody answers there in time, or the link is refused.
    """
    begin = time.monotonic()
    try:
        peer = HostPort.parse(address)
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(peer.host, peer.port)
    except (OSError, ValueError, ConfigError) as error:
        raise LinkError(f"no worker answers at {address}: {error}") from error
    line = Line(reader, writer, max(0.0, timeout_s - (time.monotonic() - begin)))
    try:
        await line.write_message(handshake.encode_hello(hello))
        line.peer_address = handshake.decode_answer(await line.read_message())
    except BaseException:
        line.close()
        raise
    return line
