"""One HTTP answer on its way to the client: whole, or as server-sent events.

A client that leaves or does not read is found out; nothing is kept for it but what one send holds.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.types import Message, Receive, Send

from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.bodies import ClientGone

ABORT = "abort"
"""Key of an application state: closes the connection at once, without what was not taken."""
QUIET_S = 15.0
"""Without an event for so long a stream shows that it lives; the first one begins it."""
_EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_JSON = {"content-type": "application/json"}
_COMMENT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"
_T = TypeVar("_T")


def as_bytes(value: object) -> bytes:
    """Write JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_event(value: object) -> bytes:
    """Write JSON as a server-sent event; it has no line breaks."""
    return b"data: " + as_bytes(value) + b"\n\n"


class Wire:
    """The answer to one request whose body has been read."""

    def __init__(
        self, receive: Receive, send: Send, *, unread_timeout_s: float, abort: Callable[[], None]
    ) -> None:
        """Begin with nothing sent."""
        self._receive = receive
        self._send_message = send
        self._unread_timeout_s = unread_timeout_s
        self._abort = abort
        self._is_begun = False

    async def watch(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work, and end it at once when the client leaves.

        Raises:
            ClientGone: it left.
        """
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(self._until_gone())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGone
            return working.result()
        finally:
            await _ended(working, leaving)

    async def stream(self, events: AsyncGenerator[bytes, None]) -> None:
        """Send events as they come; what they raise before the first is left to the caller.

        Raises:
            ClientGone: the client does not take them.
        """
        async with contextlib.aclosing(events):
            coming: asyncio.Task[bytes] | None = None
            try:
                while True:
                    coming = coming or asyncio.ensure_future(anext(events))
                    await asyncio.wait({coming}, timeout=QUIET_S)
                    if not coming.done():
                        await self._event(_COMMENT)
                        continue
                    try:
                        event = coming.result()
                    except StopAsyncIteration:
                        break
                    coming = None
                    await self._event(event)
            finally:
                if coming is not None:
                    await _ended(coming)
        await self._end()

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send an answer of JSON."""
        await self._begin(status, {**_JSON, "content-length": str(len(body)), **headers})
        await self._send({"type": "http.response.body", "body": body})

    async def error(self, error: ApiError) -> None:
        """Send an error: in a stream that has begun as its last event."""
        if not self._is_begun:
            await self.whole(error.status, as_bytes(error.body()), error.headers())
            return
        await self._event(as_event(error.body()))
        await self._end()

    async def _event(self, event: bytes) -> None:
        if not self._is_begun:
            await self._begin(200, _EVENT_STREAM)
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._is_begun = True
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _send(self, message: Message) -> None:
        """Send when the client has taken most of what was sent before.

        Raises:
            ClientGone: it does not, for too long.
        """
        try:
            async with asyncio.timeout(self._unread_timeout_s):
                await self._send_message(message)
        except TimeoutError as error:
            self._abort()
            raise ClientGone from error

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends, whatever those are."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
