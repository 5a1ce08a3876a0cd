"""What namespaces stand for, kept in Redis beside their pages, a hash each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from chunkmesh.store_thread import StoreThread
from hicache.cache import PrefixCache
from hicache.namespace_record import decode_info, encode_info
from hicache.namespaces import NamespaceInfo

KEY_PREFIX = b"cm-ns:"
"""Before the namespace in hex."""
TTL_S = 7 * 86_400
"""Far longer than pages live without hicache-server; each load begins it anew."""

_log = structlog.get_logger(__name__)


class KeptInfos:
    """Owner of what is known of namespaces and not yet saved."""

    def __init__(
        self, cache: PrefixCache, store: StoreThread, *, on_saved: Callable[[], None]
    ) -> None:
        """Take who is told that something new was saved."""
        self._cache = cache
        self._store = store
        self._on_saved = on_saved
        self._infos: dict[bytes, NamespaceInfo] = {}
        self._unsaved: dict[bytes, bool] = {}
        """By namespace: whether Redis may not have it yet."""
        self._read_wanted = False
        self._news = asyncio.Event()

    def describe(self, namespace: bytes, info: NamespaceInfo) -> None:
        """Take note of what a namespace stands for, and save it soon if that is new."""
        if self._infos.get(namespace) != info:
            self._infos[namespace] = info
            self._cache.describe(namespace, info)
            self._unsaved[namespace] = True
            self._news.set()

    async def load(self) -> None:
        """Read of the cache's namespaces what nobody has said yet, and save the rest anew.

        What has no page and no quota any more is forgotten.

        Raises:
            CacheFault: Redis does not answer.
        """
        live = {state.namespace for state in self._cache.namespaces()}
        self._infos = {name: info for name, info in self._infos.items() if name in live}
        self._unsaved = dict.fromkeys(self._infos, False) | self._unsaved
        self._news.set()
        await self._read_missing()

    def read_soon(self) -> None:
        """Say that another replica has saved something."""
        self._read_wanted = True
        self._news.set()

    async def run(self) -> None:
        """Save and read infos as they come, until cancelled; after a fault the next load does."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._save_news()
                if self._read_wanted:
                    self._read_wanted = False
                    await self._read_missing()
            except CacheFault as error:
                _log.warning("what namespaces stand for is not saved or read", error=str(error))

    async def _save_news(self) -> None:
        """Save what is unsaved.

        Raises:
            CacheFault: Redis does not answer.
        """
        has_saved = False
        while self._unsaved:
            namespace, is_new = self._unsaved.popitem()
            if namespace in self._infos:
                await self._save(namespace, self._infos[namespace])
                has_saved = has_saved or is_new
        if has_saved:
            self._on_saved()

    async def _read_missing(self) -> None:
        """Read of the cache's namespaces what nobody has said yet.

        Raises:
            CacheFault: Redis does not answer.
        """
        states = self._cache.namespaces()
        for namespace in (state.namespace for state in states if state.info is None):
            info = decode_info(await self._read(namespace))
            if info is not None and namespace not in self._infos:
                self._infos[namespace] = info
                self._cache.describe(namespace, info)

    async def _read(self, namespace: bytes) -> dict[bytes, bytes]:
        return await self._store.call(lambda store: KvAdmin(store).read_hash(_key(namespace)))

    async def _save(self, namespace: bytes, info: NamespaceInfo) -> None:
        fields = encode_info(info)
        await self._store.call(
            lambda store: KvAdmin(store).write_hash(_key(namespace), fields, ttl_s=TTL_S)
        )


def _key(namespace: bytes) -> bytes:
    return KEY_PREFIX + namespace.hex().encode()
