"""Asks a process whether it can serve: the side door's /ready, or PING for a Redis server.

A process that does not answer yet is starting, never an error; its death is noticed elsewhere.
"""

from __future__ import annotations

import dataclasses
import http.client
import socket
from pathlib import Path
from typing import Protocol

from chunkmesh.address import HostPort
from chunkmesh.json_text import parse_json

_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 65536


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What a process says of itself."""

    ready: bool
    state: str
    """A word or a short reason, for people."""
    progress: float | None = None
    """Share of the loading that is done, 0 <= progress <= 1, if it says so."""


STARTING = Readiness(ready=False, state="starting")
READY = Readiness(ready=True, state="ready")


class Probe(Protocol):
    """A question to one process."""

    def ask(self) -> Readiness:
        """Return its answer; blocks for at most a few seconds."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideDoor:
    """The HTTP side door of a service: 200 on /ready means ready, a JSON body says more."""

    address: HostPort
    ready_state: str = ""
    """State in which a service is as ready as it shall be though it does not serve, if any."""

    def ask(self) -> Readiness:
        """Return what /ready says."""
        said = self._said()
        if self.ready_state and said.state.partition(":")[0] == self.ready_state:
            return dataclasses.replace(said, ready=True)
        return said

    def _said(self) -> Readiness:
        host, port = self.address.host, self.address.port
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            return read_answer(answer.status, answer.read(_MAX_ANSWER_BYTES))
        except (OSError, http.client.HTTPException):
            return STARTING
        finally:
            connection.close()


def read_answer(status: int, body: bytes) -> Readiness:
    """Understand an answer of /ready, JSON or plain text."""
    if status == http.client.OK:
        return READY
    try:
        fields = parse_json(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        fields = {"state": body.decode(errors="replace").strip()}
    words = [str(fields[name]) for name in ("state", "reason") if fields.get(name)]
    return Readiness(
        ready=False,
        state=": ".join(words) or "not ready",
        progress=_share(fields.get("progress")),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RedisSocket:
    """A Redis or Valkey server on a unix socket."""

    path: Path

    def ask(self) -> Readiness:
        """Return whether it answers PING."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            try:
                connection.connect(str(self.path))
                connection.sendall(b"PING\r\n")
                return READY if connection.recv(64) == b"+PONG\r\n" else STARTING
            except OSError:
                return STARTING


def _share(progress: object) -> float | None:
    """Return a share of 1; None if it is no number."""
    if not isinstance(progress, int | float) or progress != progress:  # noqa: PLR0124 - NaN
        return None
    return float(min(max(progress, 0), 1))
