"""The transport that a setting names."""

from __future__ import annotations

import pytest

from chunkmesh.errors import ConfigError
from chunkmesh.transports.create import create
from chunkmesh.transports.memory import MemoryNetwork


@pytest.mark.parametrize("name", ["ucx", "grpc", "memory"])
def test_every_name_is_made(name: str) -> None:
    """The flag's values and the transports' own names are the same words."""
    assert create(name, "127.0.0.1:0", network=MemoryNetwork()).name == name


@pytest.mark.parametrize("name", ["tcp", "", "memory"])
def test_an_unknown_name_is_a_config_error(name: str) -> None:
    """Memory without a network is as unknown as a typing mistake."""
    with pytest.raises(ConfigError, match="known: ucx"):
        create(name, "127.0.0.1:0")
