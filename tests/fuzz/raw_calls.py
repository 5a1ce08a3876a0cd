"""Calls whose requests are bytes, so that what no client library would send reaches a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

_BUGS = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})
"""What servers answer who did not expect their own error."""
_CLIENTS_OWN = "Internal error from Core"
"""What gRPC's client itself says when a server refuses a stream that is still being written."""


def _same(data: bytes) -> bytes:
    return data


async def answer_of(
    channel: grpc.aio.Channel, method: str, requests: Sequence[bytes], *, timeout_s: float
) -> grpc.StatusCode:
    """Send requests, read what comes, and return the status; a stream is left after a while.

    method is /package.Service/Method; a single request is sent as unary.
    """
    calls: Any = channel.unary_stream if len(requests) == 1 else channel.stream_stream
    call = calls(method, request_serializer=_same, response_deserializer=_same)
    given = requests[0] if len(requests) == 1 else _each(requests)
    stream = call(given, timeout=timeout_s)
    try:
        async for _ in stream:
            pass
        code: grpc.StatusCode = await stream.code()
        details = await stream.details()
    except grpc.aio.AioRpcError as error:
        code, details = error.code(), error.details()
    except asyncio.CancelledError:
        stream.cancel()
        raise
    if code in _BUGS and details != _CLIENTS_OWN:
        raise AssertionError(f"{method} answered {code.name}: {details}")
    return code


async def _each(requests: Sequence[bytes]) -> AsyncIterator[bytes]:
    for request in requests:
        yield request
