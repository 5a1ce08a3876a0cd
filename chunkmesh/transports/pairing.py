"""Which links a worker waits for: armed specs by one-time token, one arrival each.

Transports look every handshake up here; nothing else decides about acceptance.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Generic, Protocol, TypeVar

from chunkmesh.errors import InvariantViolated, LinkError
from chunkmesh.transports.base import LinkSpec
from chunkmesh.transports.handshake import Refusal, compare


class Closable(Protocol):
    """An arrived connection."""

    def close(self) -> None:
        """Drop it."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Closable)


class Pairing(Generic[ConnectionT]):
    """The armed links of one worker. Belongs to one event loop."""

    def __init__(self) -> None:
        self._armed: dict[bytes, tuple[LinkSpec, asyncio.Future[ConnectionT]]] = {}
        """By token; an entry leaves when it is claimed, cancelled or the worker closes."""

    async def expect(self, spec: LinkSpec) -> ConnectionT:
        """Arm spec and wait for its connection; cancelling disarms.

        Raises:
            LinkError: the worker closed.
        """
        if spec.token in self._armed:
            raise InvariantViolated("a pairing token was armed twice")
        arrival: asyncio.Future[ConnectionT] = asyncio.get_running_loop().create_future()
        self._armed[spec.token] = (spec, arrival)
        try:
            return await arrival
        except asyncio.CancelledError:
            if arrival.done() and not arrival.cancelled() and arrival.exception() is None:
                arrival.result().close()
            raise
        finally:
            self._armed.pop(spec.token, None)

    def judge(self, offered: LinkSpec) -> Refusal | None:
        """Return why the offered link is refused, None if it may be claimed."""
        for token, (spec, arrival) in self._armed.items():
            if hmac.compare_digest(token, offered.token) and not arrival.done():
                return compare(offered, spec)
        return Refusal.TOKEN

    def claim(self, token: bytes, connection: ConnectionT) -> None:
        """Hand the connection to who expects it; its token is used up. judge said yes before."""
        _, arrival = self._armed.pop(token)
        arrival.set_result(connection)

    def close(self) -> None:
        """End every wait with LinkError."""
        for _, arrival in self._armed.values():
            if not arrival.done():
                arrival.set_exception(LinkError("the worker closed while it waited for a link"))
        self._armed.clear()
