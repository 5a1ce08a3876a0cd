"""A TCP proxy in front of a server that spoils what passes, as a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

from chunkmesh.address import HostPort

_READ_BYTES = 1 << 16
_LONG_BYTES = 512
"""Pieces of replies at least this long hold pages."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Fault:
    """What goes wrong with replies; by default nothing."""

    delay_s: float = 0.0
    """Each piece of a reply comes so much later."""
    silent: bool = False
    """Nothing comes back any more; commands are swallowed."""
    refuse: bool = False
    """Connections end at once."""
    cut: bool = False
    """The first long piece of a reply comes by half, and the connection ends."""
    flip: bool = False
    """A bit in the middle of each long piece is turned over."""


class FaultProxy:
    """Stands between clients and one server on loopback."""

    def __init__(self, target_port: int) -> None:
        self.fault = Fault()
        """Read anew for every piece."""
        self.num_connections = 0
        """Accepted since the start."""
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> HostPort:
        """Where clients connect."""
        assert self._server is not None
        return HostPort(host="127.0.0.1", port=self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Where clients of Redis connect."""
        return f"redis://{self.address}"

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[FaultProxy]:
        """Accept connections while inside."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield self
        finally:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_connections(self) -> None:
        """End every connection that stands now."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fault.refuse:
            return
        to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
        there = asyncio.create_task(self._commands(reader, to_server[1]))
        back = asyncio.create_task(self._replies(to_server[0], writer))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            to_server[1].transport.abort()

    async def _commands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (piece := await reader.read(_READ_BYTES)) and not self.fault.refuse:
            if not self.fault.silent:
                writer.write(piece)
                await writer.drain()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_READ_BYTES):
            fault = self.fault
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.refuse or fault.silent:
                return
            middle = len(piece) // 2
            if fault.flip and len(piece) >= _LONG_BYTES:
                piece = piece[:middle] + bytes([piece[middle] ^ 1]) + piece[middle + 1 :]
            if fault.cut and len(piece) >= _LONG_BYTES:
                writer.write(piece[:middle])
                await writer.drain()
                return
            writer.write(piece)
            await writer.drain()
