"""Large values on a connection, with the server's end played."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from chunkmesh.errors import CacheFault
from chunkmesh.kv_wire import Refused, ValueReader, pack, send_parts

LARGE = bytes(range(256)) * 400


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield our end and the server's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(2)
        yield ours, theirs


def rooms(*lengths: tuple[int, ...]) -> list[list[memoryview]]:
    """Return rooms of parts of these lengths."""
    return [[memoryview(bytearray(length)) for length in parts] for parts in lengths]


def bulk(value: bytes) -> bytes:
    """Return the wire form of a value."""
    return b"$%d\r\n%s\r\n" % (len(value), value)


def sent_in_pieces(theirs: socket.socket, data: bytes, piece: int) -> threading.Thread:
    """Send data in pieces from another thread."""

    def send() -> None:
        for start in range(0, len(data), piece):
            theirs.sendall(data[start : start + piece])

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("piece", [1, 7, 8191, 8192, 8193, 1 << 20])
def test_values_fill_their_rooms_however_the_bytes_come(
    ends: tuple[socket.socket, socket.socket], piece: int
) -> None:
    """A border of what was received may lie anywhere, also within a line's end."""
    value = LARGE[: 200 * piece]
    reply = b"*3\r\n" + bulk(b"record") + bulk(value) + b"$-1\r\n"
    reader = ValueReader(ends[0])
    sender = sent_in_pieces(ends[1], 2 * reply, piece)
    for _ in range(2):
        into = rooms((6,), (16, len(value) - 16), (5,))
        assert [6, len(value), None] == reader.read(into)
        assert b"record" == bytes(into[0][0])
        assert value == bytes(into[1][0]) + bytes(into[1][1])
    assert reader.is_done
    sender.join()


def test_a_value_of_another_length_is_skipped(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """What comes behind it is still read from its beginning."""
    sender = sent_in_pieces(ends[1], b"*3\r\n" + bulk(LARGE) + bulk(b"") + bulk(b"abc"), 1 << 16)
    into = rooms((16,), (16,), (3,))
    assert [len(LARGE), 0, 3] == ValueReader(ends[0]).read(into)
    assert bytes(16) == bytes(into[0][0])
    assert b"abc" == bytes(into[2][0])
    sender.join()


def test_a_refusal_is_told_and_the_next_reply_is_read(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """One key of another type does not cost the replies behind it."""
    ends[1].sendall(b"-WRONGTYPE no hash\r\n*1\r\n" + bulk(b"abc"))
    reader = ValueReader(ends[0])
    assert Refused("WRONGTYPE no hash") == reader.read(rooms((3,)))
    assert [3] == reader.read(rooms((3,)))


@pytest.mark.parametrize(
    "reply",
    [
        b"*2\r\n" + bulk(b"abc"),
        b":1\r\n",
        b"+OK\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-3\r\n",
        b"*1\r\n$" + b"9" * 5000 + b"\r\n",
        b"*1\r\n$3\r\nabcd\r\n",
        b"*" + b"1" * 10_000,
    ],
)
def test_a_reply_of_another_form_is_a_fault(
    ends: tuple[socket.socket, socket.socket], reply: bytes
) -> None:
    """Whoever answers may not be the server that was meant, or may be out of step."""
    ends[1].sendall(reply)
    with pytest.raises(CacheFault):
        ValueReader(ends[0]).read(rooms((3,)))


def test_an_end_in_the_middle_of_a_value_is_a_lost_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Half a value is never taken for a whole one."""
    ends[1].sendall(b"*1\r\n$3\r\nab")
    ends[1].close()
    with pytest.raises(ConnectionError):
        ValueReader(ends[0]).read(rooms((3,)))


def test_a_value_that_stops_coming_times_out(ends: tuple[socket.socket, socket.socket]) -> None:
    """A server that hangs must not hold an I/O thread."""
    ends[0].settimeout(0.05)
    ends[1].sendall(b"*1\r\n$3\r\nab")
    with pytest.raises(TimeoutError):
        ValueReader(ends[0]).read(rooms((3,)))


def test_what_was_said_beyond_the_reply_is_seen(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """It would be taken for the answer to the next command."""
    ends[1].sendall(b"*1\r\n" + bulk(b"abc") + b"*1\r\n")
    reader = ValueReader(ends[0])
    assert [3] == reader.read(rooms((3,)))
    assert not reader.is_done


def test_commands_are_sent_whole_whatever_the_kernel_takes(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Large values go as they are, many parts at once, and a send may end within any of them."""
    commands = [(b"HSET", b"key %d" % index, memoryview(LARGE)) for index in range(50)]
    expected = b"".join(
        b"*3\r\n" + bulk(b"HSET") + bulk(b"key %d" % index) + bulk(LARGE) for index in range(50)
    )
    sender = threading.Thread(target=send_parts, args=(ends[0], pack(commands)))
    sender.start()
    received = bytearray()
    while len(received) < len(expected):
        received += ends[1].recv(100_003)
    sender.join()
    assert expected == bytes(received)


def test_large_values_are_not_copied_to_be_sent() -> None:
    """Their memory itself is among the parts."""
    value = memoryview(LARGE)
    assert any(part is value for part in pack([(b"SET", b"key", value)]))
