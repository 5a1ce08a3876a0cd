"""chunkmesh.ports: who may move, and ports that stay free until another process binds them."""

from __future__ import annotations

import pytest

from chunkmesh.address import Listen
from chunkmesh.errors import ConfigError
from chunkmesh.ports import bind, bind_unused


def test_an_unused_port_is_none_of_an_outgoing_connection() -> None:
    """Between choosing a port and a service's binding it, connections must not take it."""
    for _ in range(20):
        with bind_unused("127.0.0.1") as bound:
            assert 20000 <= bound.getsockname()[1] < 32768


def test_an_unused_port_is_not_handed_out_while_it_is_held() -> None:
    """Processes of one mesh must not get the same port."""
    with bind_unused("127.0.0.1") as first, bind_unused("127.0.0.1") as second:
        assert first.getsockname()[1] != second.getsockname()[1]


def test_a_host_of_nobody_is_told_of() -> None:
    """A host that cannot be bound must not be tried for ever."""
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        bind_unused("192.0.2.1")


def test_a_chosen_port_in_use_is_an_error_and_a_default_one_moves() -> None:
    """What the user chose is taken or refused; what nobody chose finds another place."""
    with bind_unused("127.0.0.1") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            bind(Listen(host="127.0.0.1", port=port, flag="--port", explicit=True))
        with bind(Listen(host="127.0.0.1", port=port, flag="--port", explicit=False)) as moved:
            assert moved.getsockname()[1] > port
