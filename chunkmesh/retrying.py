"""Calls that are tried again while no scheduler serves, without a token coming twice.

A call that ended UNAVAILABLE, or CANCELLED by the server, is made again, at the next server or the
same, not before the time that RetryInfo names and with jitter, until its time is over. Not so once
output has come: what the client has read cannot be taken back. See docs/reliability.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import grpc

from chunkmesh.address import HostPort
from chunkmesh.dialling import Dialling
from chunkmesh.errors import Unavailable
from chunkmesh.grpc_client import PLAIN, Access
from chunkmesh.status import from_rpc_error
from chunkmesh.v1 import generation_pb2 as pb

_GONE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""gRPC cancels what waits at the door of a server that shuts down; a call that the client itself
cancels does not come here."""


class Servers:
    """The schedulers of a mesh, as one client knows them; for all of its calls."""

    def __init__(
        self, servers: Sequence[HostPort], *, retry_for_s: float, access: Access = PLAIN
    ) -> None:
        """Ask these, and try each call again for so many seconds; 0 tries it once."""
        self.addresses = tuple(servers)
        self.access = access
        self._dialling = Dialling(servers, random.random)
        self._retry_for_s = retry_for_s

    def serves(self, server: HostPort) -> None:
        """Take note that one of them serves."""
        self._dialling.served(server)

    def begin(self, num_outputs: int = 0) -> Attempts:
        """Begin a call, which has so many outputs if it is Generate."""
        until_s = time.monotonic() + self._retry_for_s
        return Attempts(self._dialling, until_s=until_s, num_outputs=num_outputs)


class Attempts:
    """One call, tried until it is answered or its time is over."""

    def __init__(self, dialling: Dialling, *, until_s: float, num_outputs: int) -> None:
        """Share what is known of the servers with other calls."""
        self._has_output = False
        self._num_left = num_outputs
        """Outputs whose end has not come."""
        self.num_failed = 0
        self._dialling = dialling
        self._until_s = until_s
        self.server, _ = dialling.next(time.monotonic())
        """Whom to ask now."""
        self.asked = self.server
        """Who was asked last."""

    def heard(self, reply: pb.GenerateResponse) -> None:
        """Take note of a reply; all but progress is output, which cannot be taken back."""
        event = reply.WhichOneof("event")
        self._has_output |= event != "progress"
        self._num_left -= event == "complete"

    def has_all(self) -> bool:
        """Whether all outputs came to their ends, so that how the call itself ends is no matter."""
        return self._has_output and self._num_left <= 0

    def answered(self) -> None:
        """Take note of an answer."""
        self._dialling.served(self.server)

    def pause_s(self, error: grpc.RpcError) -> float | None:
        """Choose whom to ask next, and return how long to wait for that; None if it is too late."""
        self.asked = self.server
        if self._has_output:
            return None
        if error.code() not in _GONE:
            return None
        self.num_failed += 1
        now_s = time.monotonic()
        meant = from_rpc_error(error)
        after_s = meant.retry_after_s if isinstance(meant, Unavailable) else None
        if after_s is None:
            self._dialling.failed(self.server, now_s)
        else:
            self._dialling.refused(self.server, now_s, retry_after_s=after_s)
        self.server, wait_s = self._dialling.next(now_s)
        return wait_s if now_s + wait_s < self._until_s else None
