"""Puts the parts of hicache-server together and runs them until told to stop."""

from __future__ import annotations

import asyncio
import secrets

import structlog

from chunkmesh import side_door
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.kv_store import KvStore
from chunkmesh.v1 import hicache_pb2, hicache_pb2_grpc
from hicache.cache import PrefixCache
from hicache.service import HiCacheServicer
from hicache.settings import HiCacheSettings
from hicache.store_thread import StoreThread
from hicache.watcher import RedisWatcher

_SERVICE_NAME = hicache_pb2.DESCRIPTOR.services_by_name["HiCache"].full_name

_log = structlog.get_logger(__name__)


async def serve(settings: HiCacheSettings, stop: asyncio.Event) -> None:
    """Serve until stop is set. Ready at once: while Redis is away every question is a miss.

    Raises:
        ConfigError: a chosen port is in use, or the Redis URL is none.
    """
    store = StoreThread(KvStore(settings.redis_url))
    cache = PrefixCache(name=secrets.token_hex(4), budget_bytes=settings.max_bytes)
    watcher = RedisWatcher(cache, store)
    chassis = GrpcServer(_SERVICE_NAME)
    hicache_pb2_grpc.add_HiCacheServicer_to_server(
        HiCacheServicer(cache, store, watcher), chassis.server
    )
    application = side_door.app(
        lambda: side_door.Readiness(ready=True, state="serving", reason=watcher.fault or ""),
        lambda: {
            "num_pages": cache.num_pages,
            "num_bytes": cache.num_bytes,
            "redis_fault": watcher.fault,
            "rebuilding": watcher.rebuilding,
        },
    )
    try:
        async with (
            chassis.listening(settings.listen("port")),
            side_door.listening(application, settings.listen("http_port")),
            asyncio.TaskGroup() as tasks,
        ):
            watching = tasks.create_task(watcher.run())
            chassis.set_serving(serving=True)
            await stop.wait()
            watching.cancel()
    finally:
        store.close()
