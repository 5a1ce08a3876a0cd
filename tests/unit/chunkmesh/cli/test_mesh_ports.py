"""chunkmesh.cli.mesh_ports: ports are chosen before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from chunkmesh.cli.mesh_options import GatewayOptions, MeshOptions
from chunkmesh.cli.mesh_ports import choose_endpoints
from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange

_LAYERS = (LayerRange(first=0, last=1), LayerRange(first=1, last=2))


def test_all_ports_differ() -> None:
    """Two services on one port would fail only after loading their weights."""
    chosen = choose_endpoints(MeshOptions(model_path=Path()), _LAYERS, "redis://r")
    assert chosen.hicache is not None
    central = (chosen.scheduler, chosen.internal, chosen.side_door)
    addresses = [*central, chosen.hicache.grpc, chosen.hicache.side_door]
    for worker in chosen.workers:
        addresses += [worker.data, worker.grpc, worker.side_door]
    assert len({address.port for address in addresses}) == 11
    assert chosen.gateway is None


def test_a_gateway_has_a_port_where_users_reach_it() -> None:
    """It is for users, as the scheduler's port is."""
    options = MeshOptions(model_path=Path(), host="0.0.0.0", gateway=GatewayOptions())
    chosen = choose_endpoints(options, _LAYERS, None)
    assert chosen.gateway is not None
    assert chosen.gateway.host == "127.0.0.1"
    assert chosen.gateway.port not in {chosen.scheduler.port, chosen.internal.port}


def test_a_standby_has_ports_of_its_own() -> None:
    """It listens beside the scheduler that it may stand in for."""
    options = MeshOptions(model_path=Path(), mesh_name="m")
    chosen = choose_endpoints(options, _LAYERS, "redis://r")
    standby = chosen.standby
    assert standby is not None
    central = (chosen.scheduler, chosen.internal, chosen.side_door)
    addresses = {*central, standby.users, standby.internal, standby.side_door}
    assert len({address.port for address in addresses}) == 6
    assert chosen.servers == f"{chosen.scheduler},{standby.users}"
    assert chosen.internals == f"{chosen.internal},{standby.internal}"


def test_a_named_port_in_use_is_an_error_that_names_the_flag() -> None:
    """A user who names a port wants that one or none."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = MeshOptions(model_path=Path(), internal_port=port)
        with pytest.raises(ConfigError) as caught:
            choose_endpoints(options, _LAYERS, None)
    assert f"port {port} is in use" in str(caught.value)
    assert "--internal-port" in str(caught.value)


def test_a_wildcard_host_is_reached_by_loopback() -> None:
    """0.0.0.0 is a place to listen on, not one to connect to."""
    options = MeshOptions(model_path=Path(), host="0.0.0.0")
    chosen = choose_endpoints(options, _LAYERS, None)
    assert chosen.scheduler.host == "127.0.0.1"
    assert chosen.hicache is None
