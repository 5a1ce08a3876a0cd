"""What namespaces stand for, kept in Redis beside their pages, a hash each."""

from __future__ import annotations

import asyncio

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from hicache.cache import PrefixCache
from hicache.namespace_record import decode_info, encode_info
from hicache.namespaces import NamespaceInfo
from hicache.store_thread import StoreThread

KEY_PREFIX = b"cm-ns:"
"""Before the namespace in hex."""
TTL_S = 7 * 86_400
"""Far longer than pages live without hicache-server; each load begins it anew."""

_log = structlog.get_logger(__name__)


class KeptInfos:
    """Owner of what is known of namespaces and not yet saved."""

    def __init__(self, cache: PrefixCache, store: StoreThread) -> None:
        self._cache = cache
        self._store = store
        self._infos: dict[bytes, NamespaceInfo] = {}
        self._unsaved: dict[bytes, None] = {}
        self._news = asyncio.Event()

    def describe(self, namespace: bytes, info: NamespaceInfo) -> None:
        """Take note of what a namespace stands for, and save it soon if that is new."""
        if self._infos.get(namespace) != info:
            self._infos[namespace] = info
            self._cache.describe(namespace, info)
            self._unsaved[namespace] = None
            self._news.set()

    async def load(self) -> None:
        """Read of the cache's namespaces what nobody has said yet, and save the rest anew.

        What has no page and no quota any more is forgotten.

        Raises:
            CacheFault: Redis does not answer.
        """
        states = self._cache.namespaces()
        live = {state.namespace for state in states}
        self._infos = {name: info for name, info in self._infos.items() if name in live}
        self._unsaved.update(dict.fromkeys(self._infos))
        self._news.set()
        for namespace in (state.namespace for state in states if state.info is None):
            info = decode_info(await self._read(namespace))
            if info is not None and namespace not in self._infos:
                self._infos[namespace] = info
                self._cache.describe(namespace, info)

    async def run(self) -> None:
        """Save infos as they come, until cancelled; those of a fault wait for the next load."""
        while True:
            await self._news.wait()
            self._news.clear()
            for namespace in tuple(self._unsaved):
                self._unsaved.pop(namespace)
                if namespace in self._infos:
                    await self._save(namespace, self._infos[namespace])

    async def _read(self, namespace: bytes) -> dict[bytes, bytes]:
        return await self._store.call(lambda store: KvAdmin(store).read_hash(_key(namespace)))

    async def _save(self, namespace: bytes, info: NamespaceInfo) -> None:
        fields = encode_info(info)
        try:
            await self._store.call(
                lambda store: KvAdmin(store).write_hash(_key(namespace), fields, ttl_s=TTL_S)
            )
        except CacheFault as error:
            _log.warning("what a namespace stands for is not saved", error=str(error))


def _key(namespace: bytes) -> bytes:
    return KEY_PREFIX + namespace.hex().encode()
