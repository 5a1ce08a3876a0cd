"""How a command ends when something is wrong: one line on standard error and a status."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from chunkmesh.address import HostPort
from chunkmesh.cli.request_flags import in_flags
from chunkmesh.errors import ChunkMeshError, ConfigError, InvalidRequest, Unavailable

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors raised on purpose into one line and an exit status: 2 for wrong input, else 1."""
    try:
        yield
    except ChunkMeshError as error:
        print_error(error)
        raise typer.Exit(status_of(error)) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error


def status_of(error: ChunkMeshError) -> int:
    """Return the exit status of an error, whoever found it, this program or the scheduler."""
    is_wrong_input = isinstance(error, ConfigError | InvalidRequest)
    return EXIT_USAGE if is_wrong_input else EXIT_FAILURE


def print_error(error: ChunkMeshError) -> None:
    """Write the error to standard error."""
    sys.stderr.write(f"chunkmesh: {describe(error)}\n")


def describe(error: ChunkMeshError) -> str:
    """Return reason and text, with the flag at fault or when to try again."""
    text = str(error)
    if isinstance(error, InvalidRequest):
        text = in_flags(text, error.field)
    if isinstance(error, InvalidRequest | Unavailable):
        reason = re.sub(r"(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
        text = f"{reason}: {text}"
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


def parse_servers(text: str) -> tuple[HostPort, ...]:
    """Read the value of --server that may name several.

    Raises:
        typer.BadParameter: one of them is no address, or is named twice.
    """
    servers = tuple(map(parse_server, text.split(",")))
    if len(set(servers)) < len(servers):
        raise typer.BadParameter(f"{text}: the same server twice")
    return servers
