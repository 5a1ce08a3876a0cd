"""Reads the body of an HTTP request, within limits of size and time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from chunkmesh.gateway.api_error import ApiError, invalid
from chunkmesh.json_text import parse_json

READ_S = 60.0
"""For a whole body."""
_DISCARD_S = 5.0
"""For what is too long: a client that still writes would not see why it is refused."""
_SHORT_BYTES = 1 << 16
"""Bodies up to this size are parsed at once; a hop to a thread would cost more."""
_T = TypeVar("_T")


class ClientGone(Exception):
    """The client left, or had to: nobody hears an answer."""


def declared_bytes(request: Request, *, most: int) -> int:
    """Return how long a body will be at most.

    Raises:
        ApiError: it is no JSON, by its header.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise ApiError(415, "content-type must be application/json", code="invalid_type")
    text = request.headers.get("content-length", "")
    return min(int(text), most) if text.isascii() and text.isdigit() else most


async def read_body(request: Request, *, most: int) -> bytes:
    """Read a body of at most so many bytes.

    Raises:
        ApiError: it is longer, or does not come in time.
        ClientGone: the client leaves.
    """
    try:
        async with asyncio.timeout(READ_S):
            return await _read(request, most)
    except TimeoutError as error:
        raise ApiError(
            408, f"the request's body did not come within {READ_S:g} s", code="timeout"
        ) from error
    except ClientDisconnect as error:
        raise ClientGone from error


async def _read(request: Request, most: int) -> bytes:
    parts: list[bytes] = []
    num_bytes = 0
    text = request.headers.get("content-length", "")
    is_long = text.isascii() and text.isdigit() and int(text) > most
    stream = request.stream()
    if not is_long:
        async for part in stream:
            num_bytes += len(part)
            if is_long := num_bytes > most:
                break
            parts.append(part)
    if is_long:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                async for part in stream:
                    num_bytes += len(part)
                    if num_bytes > 2 * most:
                        break
        raise ApiError(
            413, f"the request's body is longer than {most} bytes, the limit", code="too_long"
        )
    return b"".join(parts)


async def parsed(body: bytes, read: Callable[[object], _T]) -> _T:
    """Return what a body asks for; long ones are read in a thread.

    Raises:
        ApiError: it is no JSON, or read does so.
    """

    def parse() -> _T:
        try:
            value = parse_json(body)
        except ValueError as error:
            raise invalid("the request's body is no JSON", None, "invalid_json") from error
        return read(value)

    return parse() if len(body) <= _SHORT_BYTES else await asyncio.to_thread(parse)
