"""Stands before a server without TLS and speaks TLS for it, as stunnel does."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from deploy.certs.certificates import Issued

_READ_BYTES = 1 << 16


@contextlib.asynccontextmanager
async def tls_proxy(target_port: int, issued: Issued) -> AsyncIterator[int]:
    """Serve while inside and yield the port; both ends are on loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certfile, issued.keyfile)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", target_port)
        for pair in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(_copy(*pair))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                writer.write(data)
                await writer.drain()
    finally:
        writer.transport.abort()
