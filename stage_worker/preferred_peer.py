"""The --peer of a worker: where it dials first, as long as that may be the next stage.

It is a wish, not an identity: who answers proves by the link's token to be the next stage. A peer
that is dead, or that was met as another worker, costs a warning and no more than a moment, since
requests may be waiting for the link.
"""

from __future__ import annotations

import asyncio

import structlog

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import LinkSpec, Sender, Transport

_log = structlog.get_logger(__name__)
_ANSWER_S = 1.0
"""Longest that a peer may take before the scheduler's address is dialled."""


class PreferredPeer:
    """Owns what a worker knows of its --peer."""

    def __init__(self, address: str) -> None:
        """Begin without having dialled it."""
        self.address = address
        self._met: str | None = None
        """The data address, as the scheduler told it, of the worker that was met there last."""

    async def dial(self, transport: Transport, spec: LinkSpec, told: str) -> Sender:
        """Dial the next stage, which the scheduler says is at told.

        Raises:
            LinkError: it is reached at neither address.
        """
        if self.address == told:
            self._met = told
            return await transport.dial(told, spec)
        reason = "it is another worker"
        if self._met in {None, told}:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    sender = await transport.dial(self.address, spec)
            except (LinkError, TimeoutError) as error:
                reason = str(error) or f"no answer within {_ANSWER_S:.0f} s"
            else:
                self._met = told
                return sender
        _log.warning(
            "preferred peer is not the next stage", peer=self.address, reason=reason, using=told
        )
        return await transport.dial(told, spec)
