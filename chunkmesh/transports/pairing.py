"""Which links a worker waits for: armed specs by one-time token, one arrival each.

Transports look every handshake up here; nothing else decides about acceptance.
"""

from __future__ import annotations

import asyncio
import dataclasses
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Armed(Generic[ConnectionT]):
    spec: LinkSpec
    address: bytes
    arrival: asyncio.Future[ConnectionT]


class Pairing(Generic[ConnectionT]):
    """The armed links of one worker. Belongs to one event loop."""

    def __init__(self) -> None:
        self._armed: dict[bytes, _Armed[ConnectionT]] = {}
        """By token; an entry leaves when it is claimed, cancelled or the worker closes."""

    async def expect(self, spec: LinkSpec, address: bytes = b"") -> ConnectionT:
        """Arm spec and wait for its connection; address goes to its peer. Cancelling disarms.

        Raises:
            LinkError: the worker closed.
        """
        if spec.token in self._armed:
            raise InvariantViolated("a pairing token was armed twice")
        arrival: asyncio.Future[ConnectionT] = asyncio.get_running_loop().create_future()
        self._armed[spec.token] = _Armed(spec=spec, address=address, arrival=arrival)
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
        for token, armed in self._armed.items():
            if hmac.compare_digest(token, offered.token) and not armed.arrival.done():
                return compare(offered, armed.spec)
        return Refusal.TOKEN

    def claim(self, token: bytes, connection: ConnectionT) -> bytes:
        """Hand the connection to who expects it and return the address that its peer gets.

        The token is used up; judge allowed it just before.
        """
        armed = self._armed.pop(token)
        armed.arrival.set_result(connection)
        return armed.address

    def close(self) -> None:
        """End every wait with LinkError."""
        for armed in self._armed.values():
            if not armed.arrival.done():
                armed.arrival.set_exception(LinkError("the worker closed before a link came"))
        self._armed.clear()
