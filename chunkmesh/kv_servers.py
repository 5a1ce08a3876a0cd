"""The servers behind the URLs of a page store: one, independent ones, or a Redis Cluster.

What they are is found out at the first use and again after each fault, so that servers may be
restarted, replaced, and their slots moved.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from chunkmesh.errors import CacheFault
from chunkmesh.kv_connection import KvConnection
from chunkmesh.kv_pages import KvPages
from chunkmesh.kv_placement import Placement, Rendezvous, Slots, key_on_each

MIN_VERSION = (6, 2)
MARK_PREFIX = b"cm-mark:"
"""Of keys that tell whether a server still has what was written to it, one on each."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the servers say of themselves, together."""

    name: str
    """redis or valkey."""
    version: str
    """Oldest version of Redis that they are or stand for, such as 7.2.4."""
    run_id: str
    """New at every start of one of them."""
    num_keys: tuple[int, ...]
    """Keys of each server."""
    marks: tuple[bytes | None, ...]
    """Text of each server's mark, None if it has none: lost with everything else."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers that answer, and what they hold."""

    connections: tuple[KvConnection, ...]
    pages: tuple[KvPages, ...]
    """One for each connection."""
    placement: Placement
    marks: tuple[bytes, ...]
    """Key of each server's mark."""

    def split(self, keys: Sequence[bytes]) -> dict[int, list[int]]:
        """Return the indices of the keys that each server holds; servers without one are left out.

        Raises:
            CacheFault: nobody holds a key.
        """
        if len(self.connections) == 1:
            return {0: list(range(len(keys)))} if keys else {}
        parts: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            parts.setdefault(self.placement.server(key), []).append(index)
        return parts

    def is_stale(self) -> bool:
        """Whether a connection was lost while nobody talked on it."""
        return any(connection.is_stale() for connection in self.connections)

    @contextlib.contextmanager
    def exchange(self, indices: Iterable[int]) -> Iterator[None]:
        """Talk to some of the servers inside; a fault drops the connections to all of these.

        Raises:
            CacheFault: one does not answer, or refuses.
        """
        with contextlib.ExitStack() as exchanges:
            for index in indices:
                exchanges.enter_context(self.connections[index].exchange())
            yield


def find_servers(seeds: Sequence[KvConnection]) -> Servers:
    """Find out what the servers at the given addresses are.

    The servers of a cluster are asked of any of its members; independent ones must all answer.

    Raises:
        CacheFault: they do not answer, are too old, or are of several kinds.
    """
    fault: CacheFault | None = None
    for seed in seeds:
        try:
            with seed.exchange():
                _check_version(seed)
                cluster = _cluster(seed)
        except CacheFault as error:
            fault = fault or error
        else:
            if cluster is not None:
                return cluster
    if fault is not None:
        raise fault
    return _servers(tuple(seeds), Rendezvous(len(seeds)))


def describe_servers(servers: Servers) -> ServerInfo:
    """Ask all servers who they are.

    Raises:
        CacheFault: one does not answer.
    """
    infos = []
    num_keys = []
    marks = []
    for connection, mark in zip(servers.connections, servers.marks, strict=True):
        with connection.exchange():
            infos.append(_info(connection, b"server"))
            num_keys.append(connection.call((b"DBSIZE",), int))
            connection.send([(b"GET", mark)])
            text = connection.value()
            marks.append(text if isinstance(text, bytes) else None)
    return ServerInfo(
        name=infos[0].get("server_name", "redis"),
        version=min((info.get("redis_version", "0") for info in infos), key=_version),
        run_id=",".join(info.get("run_id", "") for info in infos),
        num_keys=tuple(num_keys),
        marks=tuple(marks),
    )


def _servers(connections: tuple[KvConnection, ...], placement: Placement) -> Servers:
    return Servers(
        connections=connections,
        pages=tuple(KvPages(connection) for connection in connections),
        placement=placement,
        marks=key_on_each(placement, len(connections), MARK_PREFIX),
    )


def _cluster(seed: KvConnection) -> Servers | None:
    """Return the servers of the cluster that a server is of; None if it is of none."""
    if _info(seed, b"cluster").get("cluster_enabled") != "1":
        return None
    addresses: dict[tuple[str, int], int] = {}
    ranges = []
    for entry in seed.call((b"CLUSTER", b"SLOTS"), list):
        match entry:
            case [int() as first, int() as last, [bytes() | None as host, int() as port, *_], *_]:
                address = ((host or b"").decode(), port)
                ranges.append((first, last, addresses.setdefault(address, len(addresses))))
            case _:
                raise CacheFault(f"Redis {seed.name}: CLUSTER SLOTS was answered in another form")
    if not ranges:
        raise CacheFault(f"Redis {seed.name}: the cluster has no slots yet")
    connections = tuple(seed.beside(host, port) for host, port in addresses)
    for connection in connections:
        with connection.exchange():
            _check_version(connection)
    return _servers(connections, Slots(ranges))


def _check_version(connection: KvConnection) -> None:
    version = _info(connection, b"server").get("redis_version", "0")
    if _version(version) < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise CacheFault(f"Redis {connection.name}: version {version} is older than {oldest}")


def _info(connection: KvConnection, section: bytes) -> dict[str, str]:
    text = connection.call((b"INFO", section), bytes).decode(errors="replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
