"""How `chunkmesh up` runs its own Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.cli.valkey import server_command, socket_url
from chunkmesh.errors import ConfigError


def test_it_refuses_rather_than_evicts() -> None:
    """What Redis evicted by itself could be pinned or leased, and the index would not know."""
    command = server_command(Path("valkey-server"), Path("/run/mesh"), max_bytes=1000)
    flags = dict(zip(command[1::2], command[2::2], strict=True))
    assert (flags["--maxmemory"], flags["--maxmemory-policy"]) == ("1000", "noeviction")
    assert socket_url(Path("/run/mesh")) == f"unix://{flags['--unixsocket']}"


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    """The server would end with an error about its own configuration."""
    with pytest.raises(ConfigError, match="set TMPDIR to a shorter path"):
        server_command(Path("valkey-server"), Path("/" + 100 * "x"), max_bytes=1000)
