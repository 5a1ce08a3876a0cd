"""What must outlive hicache-server: pins, quotas and what namespaces stand for, kept in Redis.

Redis is right whenever it has the mark of an earlier save; without it Redis was emptied, and gets
what this process still knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from chunkmesh.kv_store import KvStore
from chunkmesh.pages import DIGEST_BYTES
from hicache.cache import PrefixCache
from hicache.namespaces import NamespaceInfo
from hicache.namespace_record import decode_info, encode_info
from hicache.store_thread import StoreThread

PINS = b"cm-pins"
"""Hash: digest in hex -> Unix time in ms at which the pin ends, 0 for never."""
QUOTAS = b"cm-quotas"
"""Hash: namespace in hex -> most bytes."""
NAMESPACE = b"cm-ns:"
"""Hash of each namespace, by its digest in hex."""
_MARK = b"cm-kept"
_MARK_FIELDS = {b"version": b"1"}
_MAX_DIGITS = 18

_log = structlog.get_logger(__name__)

Pins = dict[bytes, float | None]


class KeptState:
    """Owner of what Redis is known to hold of it; changes pins, quotas and infos of the cache."""

    def __init__(self, cache: PrefixCache, store: StoreThread) -> None:
        self._cache = cache
        self._store = store
        self._lock = asyncio.Lock()
        """Held while Redis and the cache are made equal."""
        self._pins: Pins = {}
        """As saved: digest -> time.monotonic() at which it ends."""
        self._quotas: dict[bytes, int] = {}
        """As saved."""
        self._infos: dict[bytes, NamespaceInfo] = {}
        self._unsaved: set[bytes] = set()
        """Namespaces of which Redis does not have the info yet."""
        self._news = asyncio.Event()

    async def load(self) -> None:
        """Take pins and quotas from Redis, or give them to one that was emptied.

        Raises:
            CacheFault: Redis does not answer.
        """
        async with self._lock:
            if not await self._store.call(lambda store: KvAdmin(store).read_hash(_MARK)):
                self._pins, self._quotas = {}, {}
                await self._save()
                self._unsaved.update(self._infos)
                self._news.set()
                return
            pins, quotas = await self._store.call(_read)
            now_s, now_unix_s = time.monotonic(), time.time()
            self._pins = {
                digest: now_s + ends_ms / 1000 - now_unix_s if ends_ms else None
                for digest, ends_ms in pins.items()
            }
            self._quotas = quotas
            self._cache.restore_pins(self._pins.items(), now_s=now_s)
            self._cache.restore_quotas(self._quotas)
            await self._save()

    async def load_infos(self) -> None:
        """Take from Redis what the cache's namespaces stand for, where nobody has said so yet.

        Raises:
            CacheFault: Redis does not answer.
        """
        for state in self._cache.namespaces():
            if state.info is None:
                key = NAMESPACE + state.namespace.hex().encode()
                fields = await self._store.call(
                    lambda store, key=key: KvAdmin(store).read_hash(key)  # type: ignore[misc]
                )
                info = decode_info(fields)
                if info is not None and state.namespace not in self._infos:
                    self._infos[state.namespace] = info
                    self._cache.describe(state.namespace, info)

    async def save(self) -> None:
        """Bring Redis up to the pins and quotas of the cache.

        Raises:
            CacheFault: Redis does not answer; the cache goes back to what was saved before.
        """
        async with self._lock:
            try:
                await self._save()
            except CacheFault:
                now_s = time.monotonic()
                self._cache.restore_pins(self._pins.items(), now_s=now_s)
                self._cache.restore_quotas(self._quotas)
                raise

    def describe(self, namespace: bytes, info: NamespaceInfo) -> None:
        """Take note of what a namespace stands for, and save it soon if that is new."""
        if self._infos.get(namespace) != info:
            self._infos[namespace] = info
            self._cache.describe(namespace, info)
            self._unsaved.add(namespace)
            self._news.set()

    async def run(self) -> None:
        """Save infos as they come, until cancelled; those of a fault wait for the next load."""
        while True:
            await self._news.wait()
            self._news.clear()
            for namespace in tuple(self._unsaved):
                key = NAMESPACE + namespace.hex().encode()
                fields = encode_info(self._infos[namespace])
                try:
                    await self._store.call(
                        lambda store, key=key, fields=fields: KvAdmin(store).write_hash(key, fields)  # type: ignore[misc]
                    )
                except CacheFault as error:
                    _log.warning("what a namespace stands for is not saved", error=str(error))
                    break
                self._unsaved.discard(namespace)

    async def _save(self) -> None:
        pins: Pins = dict(self._cache.pins())
        quotas = dict(self._cache.quotas())
        now_s, now_unix_s = time.monotonic(), time.time()
        ends = {
            digest: 0 if until_s is None else round((now_unix_s + until_s - now_s) * 1000)
            for digest, until_s in pins.items()
            if digest not in self._pins or self._pins[digest] != until_s
        }
        limits = {name: limit for name, limit in quotas.items() if self._quotas.get(name) != limit}
        ended = self._pins.keys() - pins.keys()
        unset = self._quotas.keys() - quotas.keys()

        def write(store: KvStore) -> None:
            admin = KvAdmin(store)
            admin.write_hash(PINS, _encoded(ends))
            admin.write_hash(QUOTAS, _encoded(limits))
            admin.drop_fields(PINS, [digest.hex().encode() for digest in ended])
            admin.drop_fields(QUOTAS, [name.hex().encode() for name in unset])
            admin.write_hash(_MARK, _MARK_FIELDS)

        await self._store.call(write)
        self._pins, self._quotas = pins, quotas


def _read(store: KvStore) -> tuple[dict[bytes, int], dict[bytes, int]]:
    admin = KvAdmin(store)
    return _decoded(admin.read_hash(PINS)), _decoded(admin.read_hash(QUOTAS))


def _encoded(values: Mapping[bytes, int]) -> dict[bytes, bytes]:
    return {digest.hex().encode(): b"%d" % value for digest, value in values.items()}


def _decoded(fields: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Read digests and numbers; a field that is neither is left out."""
    values = {}
    for name, value in fields.items():
        try:
            digest = bytes.fromhex(name.decode())
        except ValueError:
            continue
        if len(digest) == DIGEST_BYTES and value.isdigit() and len(value) <= _MAX_DIGITS:
            values[digest] = int(value)
    return values
