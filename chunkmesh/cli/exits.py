"""How a command ends when something is wrong: one line on standard error and a status."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from chunkmesh.address import HostPort
from chunkmesh.errors import ChunkMeshError, ConfigError, InvalidRequest, Unavailable

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors raised on purpose into one line and exit status 1; settings into 2."""
    try:
        yield
    except ConfigError as error:
        print_error(error)
        raise typer.Exit(EXIT_USAGE) from error
    except ChunkMeshError as error:
        print_error(error)
        raise typer.Exit(EXIT_FAILURE) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error


def print_error(error: ChunkMeshError) -> None:
    """Write the error to standard error."""
    sys.stderr.write(f"chunkmesh: {describe(error)}\n")


def describe(error: ChunkMeshError) -> str:
    """Return reason and text, with the field at fault or when to try again."""
    text = str(error)
    if isinstance(error, InvalidRequest | Unavailable):
        reason = re.sub(r"(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
        text = f"{reason}: {text}"
    if isinstance(error, InvalidRequest) and error.field:
        text += f" (field {error.field})"
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        text += f" (try again in {error.retry_after_s:g} s)"
    return text


def parse_server(text: str) -> HostPort:
    """Read the value of --server.

    Raises:
        typer.BadParameter: it is no address.
    """
    try:
        return HostPort.parse(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
