"""Where the processes of a mesh listen. Pure."""

from __future__ import annotations

import dataclasses

from chunkmesh.address import LOOPBACK, HostPort
from chunkmesh.cli.partition import inclusive
from chunkmesh.hidden import without_passwords
from chunkmesh.layers import LayerRange

_LOOPBACK_FOR = {"0.0.0.0": LOOPBACK, "::": "::1"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEndpoints:
    """Addresses of one stage worker."""

    layers: LayerRange
    data: HostPort
    """Where activations arrive."""
    grpc: HostPort
    side_door: HostPort


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HicacheEndpoints:
    """Addresses of hicache-server and of the Redis behind it."""

    grpc: HostPort
    side_door: HostPort
    redis_url: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StandbyEndpoints:
    """Addresses of the scheduler that stands by."""

    users: HostPort
    internal: HostPort
    side_door: HostPort


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeshEndpoints:
    """Addresses of a whole mesh, as this machine reaches them."""

    scheduler: HostPort
    """The users' port."""
    internal: HostPort
    """Where workers attach."""
    side_door: HostPort
    """The scheduler's."""
    hicache: HicacheEndpoints | None
    """None without a cache."""
    workers: tuple[WorkerEndpoints, ...]
    """One for each stage, by stage, then those beside them."""
    gateway: HostPort | None = None
    """HTTP port of the OpenAI API; None without a gateway."""
    standby: StandbyEndpoints | None = None
    """None if no scheduler stands by."""

    @property
    def servers(self) -> str:
        """The schedulers that users know, as --server takes them."""
        users = [self.scheduler] if self.standby is None else [self.scheduler, self.standby.users]
        return ",".join(map(str, users))

    @property
    def internals(self) -> str:
        """The schedulers that workers know, as --scheduler takes them."""
        both = [self.internal] if self.standby is None else [self.internal, self.standby.internal]
        return ",".join(map(str, both))

    @property
    def redis_url(self) -> str | None:
        """Where pages are stored; None without a cache."""
        return None if self.hicache is None else self.hicache.redis_url

    def as_fields(self) -> dict[str, object]:
        """Return plain values for one line of JSON."""
        hicache, standby = self.hicache, self.standby
        return {
            "scheduler": str(self.scheduler),
            "internal": str(self.internal),
            "side_door": str(self.side_door),
            "standby": None
            if standby is None
            else {
                "scheduler": str(standby.users),
                "internal": str(standby.internal),
                "side_door": str(standby.side_door),
            },
            "hicache": None if hicache is None else str(hicache.grpc),
            "hicache_side_door": None if hicache is None else str(hicache.side_door),
            "gateway": None if self.gateway is None else str(self.gateway),
            "redis_url": None if self.redis_url is None else without_passwords(self.redis_url),
            "workers": [
                {
                    "layers": inclusive(worker.layers),
                    "data": str(worker.data),
                    "grpc": str(worker.grpc),
                    "side_door": str(worker.side_door),
                }
                for worker in self.workers
            ],
        }


def reachable(host: str) -> str:
    """Return how this machine itself reaches a server that is bound to host."""
    return _LOOPBACK_FOR.get(host, host)
