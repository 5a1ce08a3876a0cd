"""Bodies of requests, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.requests import Request

from chunkmesh.gateway import bodies
from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.bodies import ClientGone, declared_bytes, parsed, read_body

MOST = 100


def request(
    *parts: bytes,
    is_whole: bool = True,
    leaves: bool = False,
    headers: Mapping[str, str] | None = None,
) -> Request:
    """Return a request whose body comes in parts, and goes on for ever if it is not whole."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": True} for part in parts
    ]
    if is_whole:
        messages.append({"type": "http.request", "body": b"", "more_body": False})
    elif leaves:
        messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


async def test_a_body_in_parts() -> None:
    """Up to the limit, to the byte."""
    assert b"x" * MOST == await read_body(request(b"x" * 60, b"x" * 40), most=MOST)


@pytest.mark.parametrize("headers", [{}, {"content-length": "101"}])
async def test_a_body_that_is_too_long(headers: dict[str, str]) -> None:
    """Whether it says so or not."""
    with pytest.raises(ApiError) as caught:
        await read_body(request(b"x" * 60, b"x" * 41, headers=headers), most=MOST)
    assert (413, "too_long") == (caught.value.status, caught.value.code)


async def test_a_body_that_never_ends_is_refused_all_the_same() -> None:
    """What is read behind the limit, for the client's sake, is bounded as well."""
    with pytest.raises(ApiError) as caught:
        await read_body(request(*[b"x" * 50] * 9, is_whole=False), most=MOST)
    assert 413 == caught.value.status


async def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds a request open by a slow body."""
    monkeypatch.setattr(bodies, "READ_S", 0.02)
    with pytest.raises(ApiError) as caught:
        await read_body(request(b"{", is_whole=False), most=MOST)
    assert 408 == caught.value.status


async def test_a_client_that_leaves() -> None:
    """There is nobody to answer."""
    with pytest.raises(ClientGone):
        await read_body(request(b"{", is_whole=False, leaves=True), most=MOST)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"content-length": "7"}, 7),
        ({"content-length": "700"}, MOST),
        ({"content-length": "x"}, MOST),
        ({}, MOST),
        ({"content-type": "application/json; charset=utf-8", "content-length": "7"}, 7),
    ],
)
def test_what_is_held_is_what_may_come(headers: dict[str, str], expected: int) -> None:
    """Without a length that is the limit."""
    assert expected == declared_bytes(request(headers=headers), most=MOST)


def test_a_body_of_another_kind_is_not_read() -> None:
    """A page of another site can send forms and plain text, but no JSON."""
    with pytest.raises(ApiError) as caught:
        declared_bytes(request(headers={"content-type": "text/plain"}), most=MOST)
    assert 415 == caught.value.status


@pytest.mark.parametrize("size", [10, 1 << 17])
async def test_long_bodies_are_read_as_short_ones(size: int) -> None:
    """In a thread, so that others go on meanwhile."""
    assert "x" * size == await parsed(b'"%s"' % (b"x" * size), lambda value: value)
