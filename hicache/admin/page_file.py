"""A file of exported pages: messages behind their lengths, and an end that tells their number.

Layout: 8 bytes magic and version; then for each message its length as little-endian unsigned 32 bit
and a serialized chunkmesh.v1.ExportResponse; then a length of 0 and the number of messages as
little-endian unsigned 64 bit. What is read is checked for form only; the server checks the pages.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from google.protobuf.message import DecodeError

from chunkmesh.errors import ConfigError
from chunkmesh.grpc_options import MAX_MESSAGE_BYTES
from chunkmesh.v1 import hicache_pb2 as pb

_MAGIC = b"CMPAGES\x01"
_LENGTH = struct.Struct("<I")
_COUNT = struct.Struct("<Q")


class PageFileWriter:
    """Writes beside the file and takes its place once complete; nothing is left of a broken one."""

    def __init__(self, path: Path) -> None:
        self.num_bytes = 0
        """Written so far."""
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._num_messages = 0
        self._complete = False

    def __enter__(self) -> Self:
        self._file: BinaryIO = self._part.open("wb")
        self._write(_MAGIC)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._complete:
            self._part.replace(self._path)
        else:
            self._part.unlink()

    def add(self, message: pb.ExportResponse) -> None:
        """Append a message."""
        data = message.SerializeToString()
        self._write(_LENGTH.pack(len(data)))
        self._write(data)
        self._num_messages += 1

    def end(self) -> None:
        """Append the end; without it leaving the context removes the file."""
        self._write(_LENGTH.pack(0) + _COUNT.pack(self._num_messages))
        self._complete = True

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.num_bytes += len(data)


def read_page_file(path: Path) -> Iterator[pb.ExportResponse]:
    """Yield the messages of a file.

    Raises:
        ConfigError: it is no such file, or not whole.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        for index, length in enumerate(_lengths(file, path)):
            try:
                yield pb.ExportResponse.FromString(_exactly(file, length, path))
            except DecodeError as error:
                raise ConfigError(f"{path} is damaged: message {index} is none") from error


def check_page_file(path: Path) -> int:
    """Look at every length and at the end, without the messages between; return their number.

    Raises as reading does.
    """
    num_messages = 0
    with path.open("rb") as file:
        for length in _lengths(file, path):
            file.seek(length, io.SEEK_CUR)
            num_messages += 1
    return num_messages


def _lengths(file: BinaryIO, path: Path) -> Iterator[int]:
    """Yield the length of each message; whoever takes it moves the file behind the message."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ConfigError(f"{path} is no file of exported pages, or of another version")
    num_messages = 0
    while (length := _length(file, path)) > 0:
        yield length
        num_messages += 1
    (told,) = _COUNT.unpack(_exactly(file, _COUNT.size, path))
    if told != num_messages:
        raise ConfigError(f"{path} is damaged: it holds {num_messages} messages, not {told}")
    if file.read(1):
        raise ConfigError(f"{path} is damaged: something stands behind its end")


def _length(file: BinaryIO, path: Path) -> int:
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size, path))
    if length > MAX_MESSAGE_BYTES:
        raise ConfigError(f"{path} is damaged: a message of {length} bytes")
    return int(length)


def _exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ConfigError(f"{path} ends early")
    return data
