"""An answer on its way: events, errors, clients that leave and clients that do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from chunkmesh.gateway import wire as wire_module
from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.bodies import ClientGone
from chunkmesh.gateway.wire import Wire, as_bytes, as_event

ERROR = ApiError(503, "gone", code="unavailable", retry_after_s=2)


class Client:
    """What is at the other end."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.leaves = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.was_cut_off = False
        self.wire = Wire(self._receive, self._send, unread_timeout_s=0.05, abort=self._abort)

    @property
    def body(self) -> bytes:
        """All that has come."""
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def status(self) -> int:
        """Of the answer."""
        status: int = self.messages[0]["status"]
        return status

    @property
    def has_all(self) -> bool:
        """Whether the answer is whole."""
        return not self.messages[-1].get("more_body", False)

    async def _receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        self.messages.append(message)

    def _abort(self) -> None:
        self.was_cut_off = True


async def events(*sent: bytes, error: Exception | None = None) -> AsyncGenerator[bytes, None]:
    """Yield events, and end with an error if there is one."""
    for each in sent:
        yield each
    if error is not None:
        raise error


async def test_a_stream_is_sent_event_by_event() -> None:
    """Nothing waits for what comes later."""
    client = Client()
    await client.wire.stream(events(b"a", b"b"))
    assert [b"a", b"b", b""] == [message["body"] for message in client.messages[1:]]
    headers = dict(client.messages[0]["headers"])
    assert b"text/event-stream; charset=utf-8" == headers[b"content-type"]
    assert client.has_all


async def test_an_error_before_the_first_event_has_its_status() -> None:
    """A client that is refused can tell from the head."""
    client = Client()
    with pytest.raises(ApiError):
        await client.wire.stream(events(error=ERROR))
    assert [] == client.messages
    await client.wire.error(ERROR)
    assert (503, as_bytes(ERROR.body())) == (client.status, client.body)
    assert b"2" == dict(client.messages[0]["headers"])[b"retry-after"]


async def test_an_error_in_a_stream_is_its_last_event() -> None:
    """The head has gone; OpenAI's clients raise on such an event."""
    client = Client()
    with pytest.raises(ApiError):
        await client.wire.stream(events(b"a", error=ERROR))
    await client.wire.error(ERROR)
    assert (200, b"a" + as_event(ERROR.body())) == (client.status, client.body)
    assert client.has_all


async def test_a_quiet_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prefill says nothing for minutes, and proxies give up on silent connections."""
    monkeypatch.setattr(wire_module, "QUIET_S", 0.02)
    client = Client()

    async def late() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.05)
        yield b"late"

    await client.wire.stream(late())
    comments, _, rest = client.body.partition(b"late")
    assert {b": waiting"} == set(comments.strip().split(b"\n\n"))
    assert b"" == rest


async def test_work_ends_when_the_client_leaves() -> None:
    """At once: the mesh computes for nobody."""
    client, ended = Client(), asyncio.Event()

    async def work() -> None:
        try:
            client.leaves.set()
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(ClientGone):
        await client.wire.watch(work())
    assert ended.is_set()


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    """What it left unread would otherwise be kept for ever."""
    client = Client()
    client.reads.clear()
    with pytest.raises(ClientGone):
        await client.wire.stream(events(b"a"))
    assert client.was_cut_off


def test_an_event_is_one_line() -> None:
    """A line break inside would end it."""
    event = as_event({"text": "a\n\nb\r\u2028", "n": None})
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert 2 == event.count(b"\n")
    assert 0 == event.count(b"\r")
    assert {"text": "a\n\nb\r\u2028", "n": None} == json.loads(event[6:])
