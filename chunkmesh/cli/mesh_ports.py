"""Gives every process of a mesh its ports, before anything is started."""

from __future__ import annotations

from contextlib import ExitStack

from chunkmesh.address import LOOPBACK, HostPort, Listen
from chunkmesh.cli.endpoints import (
    HicacheEndpoints,
    MeshEndpoints,
    StandbyEndpoints,
    WorkerEndpoints,
    reachable,
)
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.layers import LayerRange
from chunkmesh.ports import bind, bind_unused

_USUAL_PORT = 50051
_USUAL_INTERNAL_PORT = 50052
_USUAL_HICACHE_PORT = 50071
_USUAL_GATEWAY_PORT = 8000
_ANY_PORT = 0


class _Reservation:
    """Holds ports until all are chosen, so that no two are the same."""

    def __init__(self, held: ExitStack, *, prefer_usual: bool) -> None:
        self._held = held
        self._prefer_usual = prefer_usual

    def take(
        self, host: str, named: int | None = None, usual: int = _ANY_PORT, flag: str = ""
    ) -> HostPort:
        """Take the port that the user named, else the usual one or the next, else any."""
        default = usual if self._prefer_usual else _ANY_PORT
        port = named or default
        bound = self._held.enter_context(
            bind(Listen(host=host, port=port, flag=flag, explicit=bool(named)))
            if port
            else bind_unused(host)
        )
        return HostPort(host=reachable(host), port=bound.getsockname()[1])


def choose_endpoints(
    options: MeshOptions, layers: tuple[LayerRange, ...], redis_url: str | None
) -> MeshEndpoints:
    """Choose free ports; until the services bind them another program may take one.

    Raises:
        ConfigError: a port that the user named is in use or cannot be bound; names the flag.
    """
    with ExitStack() as held:
        reservation = _Reservation(held, prefer_usual=options.prefer_usual_ports)
        take = reservation.take
        return MeshEndpoints(
            scheduler=take(options.host, options.port, _USUAL_PORT, "--port"),
            internal=take(
                options.host, options.internal_port, _USUAL_INTERNAL_PORT, "--internal-port"
            ),
            side_door=take(options.host, options.http_port, flag="--http-port"),
            standby=None
            if options.mesh_name is None
            else StandbyEndpoints(
                users=take(options.host),
                internal=take(options.host),
                side_door=take(options.host),
            ),
            hicache=None
            if redis_url is None
            else HicacheEndpoints(
                grpc=take(LOOPBACK, options.hicache_port, _USUAL_HICACHE_PORT, "--hicache-port"),
                side_door=take(LOOPBACK),
                redis_url=redis_url,
            ),
            workers=tuple(
                WorkerEndpoints(
                    layers=part,
                    data=take(LOOPBACK),
                    grpc=take(LOOPBACK),
                    side_door=take(LOOPBACK),
                )
                for part in layers
            ),
            gateway=None
            if options.gateway is None
            else take(options.host, options.gateway.port, _USUAL_GATEWAY_PORT, "--gateway-port"),
        )
