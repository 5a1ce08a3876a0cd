"""Puts the parts of hicache-server together and runs them until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Iterator

from starlette.applications import Starlette

from chunkmesh import side_door
from chunkmesh.address import HostPort
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.kv_login import login_of
from chunkmesh.kv_store import KvStore
from chunkmesh.side_door import Readiness
from chunkmesh.store_thread import StoreThread
from chunkmesh.trust.access import Door, Role
from chunkmesh.trust.guard import Guard
from chunkmesh.v1 import hicache_pb2, hicache_pb2_grpc
from hicache.admin_service import AdminService
from hicache.audit_log import AuditLog
from hicache.bulk_service import BulkService
from hicache.cache import PrefixCache
from hicache.changes import Change
from hicache.kept_infos import KeptInfos
from hicache.kept_state import KeptState
from hicache.rebuild import Rebuilder
from hicache.replication.events import Cleared, Described, KeptChanged
from hicache.replication.follower import Follower, Need
from hicache.replication.outbox import Outbox
from hicache.replication.replica import Replica
from hicache.service import HiCacheServicer
from hicache.settings import HiCacheSettings
from hicache.watch import ChangeFeed
from hicache.watcher import PING_S, RedisWatcher

_SERVICE_NAME = hicache_pb2.DESCRIPTOR.services_by_name["HiCache"].full_name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What runs in the background."""

    cache: PrefixCache
    outbox: Outbox
    feed: ChangeFeed
    infos: KeptInfos
    kept: KeptState
    replica: Replica
    watcher: RedisWatcher


async def serve(settings: HiCacheSettings, stop: asyncio.Event) -> None:
    """Serve until stop is set.

    Raises:
        ConfigError: a chosen port is in use, a file does not do, or the Redis URL is none.
    """
    async with running(settings):
        await stop.wait()


@contextlib.asynccontextmanager
async def running(settings: HiCacheSettings, *, ping_s: float = PING_S) -> AsyncIterator[HostPort]:
    """Serve while inside and yield the gRPC address.

    Ready at once: while Redis is away every question is a miss.
    """
    tls = settings.mesh_tls(Role.HICACHE)
    guard = Guard(door=Door.HICACHE, tls=tls, is_mutual=tls is not None)
    with _stores(settings) as stores:
        parts = _parts(settings, stores, ping_s=ping_s)
        chassis = GrpcServer(_SERVICE_NAME, guard=guard)
        servicer = _servicer(parts, stores)
        hicache_pb2_grpc.add_HiCacheServicer_to_server(servicer, chassis.server)
        stopping = asyncio.Event()
        async with (
            side_door.listening(_side_door(parts, stopping), settings.listen("http_port")),
            chassis.listening(settings.listen("port")) as address,
            asyncio.TaskGroup() as tasks,
        ):
            background = (
                tasks.create_task(parts.watcher.run()),
                tasks.create_task(parts.infos.run()),
                tasks.create_task(parts.kept.run()),
                tasks.create_task(parts.replica.run(stand_s=ping_s)),
            )
            chassis.set_serving(serving=True)
            try:
                yield address
            finally:
                stopping.set()
                chassis.set_serving(serving=False)
                parts.feed.close()
                for task in background:
                    task.cancel()
        await parts.replica.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Stores:
    """Connections to Redis: one for short commands, one for long reads, one for events."""

    short: StoreThread
    bulk: StoreThread
    events: StoreThread


@contextlib.contextmanager
def _stores(settings: HiCacheSettings) -> Iterator[_Stores]:
    login = login_of(settings)
    stores = _Stores(
        short=StoreThread(KvStore(*settings.redis_url, login=login)),
        bulk=StoreThread(KvStore(*settings.redis_url, login=login)),
        events=StoreThread(KvStore(*settings.redis_url, login=login)),
    )
    try:
        yield stores
    finally:
        stores.bulk.close()
        stores.events.close()
        stores.short.close()


def _parts(settings: HiCacheSettings, stores: _Stores, *, ping_s: float) -> _Parts:
    name, outbox, feed = secrets.token_hex(4), Outbox(), ChangeFeed()
    rebuild_asked = asyncio.Event()
    cache = _cache(settings, name, outbox, feed)

    def rescan_soon() -> None:
        rebuilder.rescan_soon()

    kept = KeptState(cache, stores.short, on_saved=lambda: outbox.add(KeptChanged()))
    infos = KeptInfos(cache, stores.short, on_saved=lambda: outbox.add(Described()))
    replica = Replica(
        cache,
        stores.events,
        name=name,
        outbox=outbox,
        follower=Follower(cache, tell=feed.changed, tell_cleared=feed.cleared),
        meet={
            Need.RESCAN: rebuild_asked.set,
            Need.RESCAN_SOON: rescan_soon,
            Need.LOAD_KEPT: kept.load_soon,
            Need.LOAD_INFOS: infos.read_soon,
        },
    )
    rebuilder = Rebuilder(
        cache, stores.short, kept=kept, infos=infos, replica=replica, asked=rebuild_asked
    )
    watcher = RedisWatcher(
        cache,
        stores.short,
        rebuilder=rebuilder,
        feed=feed,
        on_unlinked=outbox.unlinked,
        ping_s=ping_s,
    )
    return _Parts(
        cache=cache,
        outbox=outbox,
        feed=feed,
        infos=infos,
        kept=kept,
        replica=replica,
        watcher=watcher,
    )


def _cache(settings: HiCacheSettings, name: str, outbox: Outbox, feed: ChangeFeed) -> PrefixCache:
    def on_change(change: Change) -> None:
        feed.changed(change.summary)
        outbox.changed(change)

    return PrefixCache(
        name=name,
        budget_bytes=settings.max_bytes,
        policy=settings.eviction_policy,
        on_change=on_change,
        on_lease=outbox.leased,
    )


def _servicer(parts: _Parts, stores: _Stores) -> HiCacheServicer:
    cache, watcher, audit = parts.cache, parts.watcher, AuditLog(stores.short)

    def on_cleared(num_pages: int, num_bytes: int) -> None:
        parts.feed.cleared(num_pages, num_bytes)
        parts.outbox.add(Cleared(num_pages=num_pages, num_bytes=num_bytes))

    return HiCacheServicer(
        cache=cache,
        watcher=watcher,
        infos=parts.infos,
        feed=parts.feed,
        admin=AdminService(
            cache=cache,
            store=stores.short,
            watcher=watcher,
            kept=parts.kept,
            audit=audit,
            on_cleared=on_cleared,
        ),
        bulk=BulkService(cache=cache, bulk=stores.bulk, watcher=watcher, audit=audit),
    )


def _side_door(parts: _Parts, stopping: asyncio.Event) -> Starlette:
    cache, watcher = parts.cache, parts.watcher

    def readiness() -> Readiness:
        if stopping.is_set():
            return Readiness(ready=False, state="draining", reason="hicache is shutting down")
        return Readiness(ready=True, state="serving", reason=watcher.fault or "")

    return side_door.app(
        readiness,
        lambda: {
            "num_pages": cache.num_pages,
            "num_bytes": cache.num_bytes,
            "redis_fault": watcher.fault,
            "rebuilding": watcher.rebuilding,
            "replica": parts.replica.name,
            "evicts": parts.replica.evictor.evicts,
        },
    )
