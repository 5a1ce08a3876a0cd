"""How a command ends: its status, and one line on standard error when something is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Never, TypeVar

import typer

from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130

_T = TypeVar("_T")


def fail(message: str, status: int = EXIT_ERROR) -> Never:
    """Say why, and end."""
    sys.stderr.write(f"hicache-admin: {message}\n")
    raise typer.Exit(status)


def parsed(flag: str, text: str, parse: Callable[[str], _T]) -> _T:
    """Read the value of a flag; one that cannot be read is wrong usage."""
    try:
        return parse(text)
    except ConfigError as error:
        fail(f"{flag}: {error}", EXIT_USAGE)


def unicode_text(flag: str, text: str) -> str:
    """Return text as it is; bytes of the command line that are no UTF-8 are wrong usage."""
    try:
        text.encode()
    except UnicodeEncodeError:
        fail(f"{flag}: {text!r} is not UTF-8", EXIT_USAGE)
    return text


def address(flag: str, text: str) -> HostPort:
    """Read HOST:PORT."""
    return parsed(flag, text, HostPort.parse)
