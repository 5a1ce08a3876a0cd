"""Puts the parts of hicache-server together and runs them until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from starlette.applications import Starlette

from chunkmesh import side_door
from chunkmesh.address import HostPort
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.kv_store import KvStore
from chunkmesh.v1 import hicache_pb2, hicache_pb2_grpc
from hicache.admin_service import AdminService
from hicache.audit_log import AuditLog
from hicache.bulk_service import BulkService
from hicache.cache import PrefixCache
from hicache.kept_infos import KeptInfos
from hicache.kept_state import KeptState
from hicache.service import HiCacheServicer
from hicache.settings import HiCacheSettings
from hicache.store_thread import StoreThread
from hicache.watch import ChangeFeed
from hicache.watcher import PING_S, RedisWatcher

_SERVICE_NAME = hicache_pb2.DESCRIPTOR.services_by_name["HiCache"].full_name


async def serve(settings: HiCacheSettings, stop: asyncio.Event) -> None:
    """Serve until stop is set.

    Raises:
        ConfigError: a chosen port is in use, or the Redis URL is none.
    """
    async with running(settings):
        await stop.wait()


@contextlib.asynccontextmanager
async def running(settings: HiCacheSettings, *, ping_s: float = PING_S) -> AsyncIterator[HostPort]:
    """Serve while inside and yield the gRPC address.

    Ready at once: while Redis is away every question is a miss.
    """
    store = StoreThread(KvStore(*settings.redis_url))
    bulk = StoreThread(KvStore(*settings.redis_url))
    feed = ChangeFeed()
    cache = PrefixCache(
        name=secrets.token_hex(4),
        budget_bytes=settings.max_bytes,
        policy=settings.eviction_policy,
        on_change=feed.changed,
    )
    kept, infos = KeptState(cache, store), KeptInfos(cache, store)
    watcher = RedisWatcher(cache, store, kept=kept, infos=infos, feed=feed, ping_s=ping_s)
    audit = AuditLog(store)
    servicer = HiCacheServicer(
        cache=cache,
        watcher=watcher,
        infos=infos,
        feed=feed,
        admin=AdminService(
            cache=cache, store=store, watcher=watcher, kept=kept, audit=audit, feed=feed
        ),
        bulk=BulkService(cache=cache, bulk=bulk, watcher=watcher, audit=audit),
    )
    chassis = GrpcServer(_SERVICE_NAME)
    hicache_pb2_grpc.add_HiCacheServicer_to_server(servicer, chassis.server)
    try:
        async with (
            chassis.listening(settings.listen("port")) as address,
            side_door.listening(_side_door(cache, watcher), settings.listen("http_port")),
            asyncio.TaskGroup() as tasks,
        ):
            running_tasks = (tasks.create_task(watcher.run()), tasks.create_task(infos.run()))
            chassis.set_serving(serving=True)
            try:
                yield address
            finally:
                feed.close()
                for task in running_tasks:
                    task.cancel()
    finally:
        bulk.close()
        store.close()


def _side_door(cache: PrefixCache, watcher: RedisWatcher) -> Starlette:
    return side_door.app(
        lambda: side_door.Readiness(ready=True, state="serving", reason=watcher.fault or ""),
        lambda: {
            "num_pages": cache.num_pages,
            "num_bytes": cache.num_bytes,
            "redis_fault": watcher.fault,
            "rebuilding": watcher.rebuilding,
        },
    )
