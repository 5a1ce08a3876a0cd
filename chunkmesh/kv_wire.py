"""Large values on a connection to Redis or Valkey: sent from, and received into, where they lie.

A general client copies each value two or three times on its way. Here the kernel's copy is the
only one. Whatever is not a large value goes through redis-py.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
import struct
from collections.abc import Sequence

from chunkmesh.errors import CacheFault

Command = Sequence[bytes | memoryview]

_UNCOPIED_BYTES = 16 << 10
_MAX_PARTS = 64
"""Of one send; Linux takes 1024."""
_BUFFER_BYTES = 8 << 10
"""Of what is received between large values; also the longest line of a reply."""
_MAX_HEAD_BYTES = 16
_SKIP_BYTES = 64 << 10
_END = b"\r\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A command that the server did not do."""

    text: str
    """Its words, which begin with a code such as OOM."""


def pack(commands: Sequence[Command]) -> list[bytes | memoryview]:
    """Return the wire form in parts; large values as they are, so that they are not copied."""
    parts: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for word in command:
            small.append(b"$%d\r\n" % len(word))
            if len(word) >= _UNCOPIED_BYTES:
                parts += (b"".join(small), word)
                small = []
            else:
                small.append(word)
            small.append(_END)
    parts.append(b"".join(small))
    return parts


def send_parts(sock: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """Send all parts, many of them with each call of the kernel.

    Raises:
        OSError: the connection is lost, or nothing was taken within its timeout.
    """
    if isinstance(sock, ssl.SSLSocket):
        for part in parts:
            sock.sendall(part)
        return
    views = [memoryview(part) for part in parts]
    first = 0
    while first < len(views):
        num_sent = sock.sendmsg(views[first : first + _MAX_PARTS])
        while first < len(views) and num_sent >= len(views[first]):
            num_sent -= len(views[first])
            first += 1
        if num_sent:
            views[first] = views[first][num_sent:]


class ValueReader:
    """Reads replies that are arrays of large values; nobody else may read meanwhile."""

    def __init__(self, sock: socket.socket) -> None:
        """Read from a connected socket that somebody else closes; its timeout bounds each wait.

        The kernel then waits, so that a value is received by one call, not by one for each piece.
        """
        self._sock = sock
        self._flags = 0
        if not isinstance(sock, ssl.SSLSocket):
            _let_kernel_wait(sock)
            self._flags = socket.MSG_WAITALL
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        """Of what was received and not read, in the buffer."""
        self._stop = 0

    @property
    def is_done(self) -> bool:
        """Whether all that was received has been read."""
        return self._start == self._stop

    def read(self, rooms: Sequence[Sequence[memoryview]]) -> list[int | None] | Refused:
        """Read an array of one value for each room, which the value fills part by part.

        Returns the length of each value, None if there is none. A value of another length than
        its room's is skipped.

        Raises:
            OSError: the connection is lost, or nothing came within its timeout.
            CacheFault: the reply is none of this kind.
        """
        head = self._line()
        if head[:1] == b"-":
            return Refused(head[1:].decode(errors="replace"))
        if head != b"*%d" % len(rooms):
            raise CacheFault(f"{len(rooms)} values were answered by {head[:32]!r}")
        return [self._value(room) for room in rooms]

    def _value(self, room: Sequence[memoryview]) -> int | None:
        head = self._line()
        if head == b"$-1":
            return None
        if not (head[:1] == b"$" and head[1:].isdigit() and len(head) < _MAX_HEAD_BYTES):
            raise CacheFault(f"a value was answered by {head[:32]!r}")
        length = int(head[1:])
        if length == sum(map(len, room)):
            for part in room:
                self._fill(part)
        else:
            self._skip(length)
        if self._line() != b"":
            raise CacheFault("a value is longer than it was said to be")
        return length

    def _line(self) -> bytes:
        """Read a line, without its end."""
        while (end := self._buffer.find(_END, self._start, self._stop)) < 0:
            num_waiting = self._stop - self._start
            if num_waiting == _BUFFER_BYTES:
                raise CacheFault("a reply has too long a line")
            self._buffer[:num_waiting] = self._buffer[self._start : self._stop]
            self._start, self._stop = 0, num_waiting
            self._stop += self._receive(self._view[num_waiting:])
        line = bytes(self._view[self._start : end])
        self._start = end + len(_END)
        return line

    def _fill(self, part: memoryview) -> None:
        num_bytes = min(len(part), self._stop - self._start)
        part[:num_bytes] = self._view[self._start : self._start + num_bytes]
        self._start += num_bytes
        while num_bytes < len(part):
            num_bytes += self._receive(part[num_bytes:], self._flags)

    def _skip(self, num_bytes: int) -> None:
        scratch = memoryview(bytearray(min(num_bytes, _SKIP_BYTES)))
        while num_bytes:
            part = scratch[: min(num_bytes, _SKIP_BYTES)]
            self._fill(part)
            num_bytes -= len(part)

    def _receive(self, into: memoryview, flags: int = 0) -> int:
        num_bytes = self._sock.recv_into(into, 0, flags)
        if num_bytes == 0:
            raise ConnectionError("the server closed the connection")
        return num_bytes


def _let_kernel_wait(sock: socket.socket) -> None:
    """Make calls block, each as long as the socket's timeout at most."""
    timeout_s = sock.gettimeout()
    if timeout_s is None:
        return
    seconds, rest_s = divmod(max(timeout_s, 1e-3), 1.0)
    limit = struct.pack("@ll", int(seconds), int(1e6 * rest_s))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    os.set_blocking(sock.fileno(), True)
