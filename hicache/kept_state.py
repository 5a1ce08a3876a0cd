"""Pins and quotas, kept in Redis so that they outlive hicache-server.

Redis is right whenever it has the mark of an earlier save; without it Redis was emptied, and gets
what this process still knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from chunkmesh.kv_store import KvStore
from chunkmesh.pages import DIGEST_BYTES
from hicache.cache import PrefixCache
from hicache.store_thread import StoreThread

PINS = b"cm-pins"
"""Hash: digest in hex -> Unix time in ms at which the pin ends, 0 for never."""
QUOTAS = b"cm-quotas"
"""Hash: namespace in hex -> most bytes."""
MARK = b"cm-kept"
"""Hash that is there if the others are, or are empty on purpose."""
_MARK_FIELDS = {b"version": b"1"}
_MAX_VALUE = (1 << 63) - 1
_MAX_DIGITS = len(str(_MAX_VALUE))
_RETRY_S = 1.0

_log = structlog.get_logger(__name__)

Pins = dict[bytes, float | None]


class KeptState:
    """Owner of what Redis is known to hold of the cache's pins and quotas."""

    def __init__(
        self, cache: PrefixCache, store: StoreThread, *, on_saved: Callable[[], None]
    ) -> None:
        """Take who is told that something was changed here and saved."""
        self._cache = cache
        self._store = store
        self._on_saved = on_saved
        self._load_wanted = asyncio.Event()
        self._lock = asyncio.Lock()
        """Held while the cache and Redis are made equal."""
        self._pins: Pins = {}
        """As saved: digest -> time.monotonic() at which it ends."""
        self._quotas: dict[bytes, int] = {}
        """As saved."""

    def redis_lost(self) -> None:
        """Take note that Redis may hold nothing of what was saved."""
        self._pins, self._quotas = {}, {}

    async def load(self) -> None:
        """Take pins and quotas from Redis, or give them to one that was emptied.

        Raises:
            CacheFault: Redis does not answer.
        """
        async with self._lock:
            if await self._store.call(lambda store: KvAdmin(store).read_hash(MARK)):
                pins, quotas = await self._store.call(_read)
                now_s, now_unix_s = time.monotonic(), time.time()
                self._pins = {
                    digest: now_s + ends_ms / 1000 - now_unix_s if ends_ms else None
                    for digest, ends_ms in pins.items()
                }
                self._quotas = quotas
                self._restore()
            else:
                self.redis_lost()
            await self._save(self._cache.quotas())

    def load_soon(self) -> None:
        """Say that another replica has changed pins or quotas."""
        self._load_wanted.set()

    async def run(self) -> None:
        """Load when another replica has changed something, until cancelled."""
        while True:
            await self._load_wanted.wait()
            self._load_wanted.clear()
            try:
                await self.load()
            except CacheFault as error:
                _log.warning("pins and quotas are not loaded", error=str(error))
                await asyncio.sleep(_RETRY_S)
                self._load_wanted.set()

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Let the cache's pins and quotas be changed inside, and save them on leaving.

        Raises:
            CacheFault: Redis does not answer; the cache goes back to what was saved before, as it
                does when what is inside is cancelled.
        """
        async with self._lock:
            try:
                yield
            except asyncio.CancelledError:  # the caller went in the middle of it
                self._restore()
                raise
            try:
                await self._save(self._cache.quotas())
            except CacheFault:
                self._restore()
                raise
            self._on_saved()

    async def save_quota(self, namespace: bytes, max_bytes: int) -> None:
        """Save a limit, 0 for none, before the cache keeps it: what that evicts is lost for good.

        Raises:
            CacheFault: Redis does not answer.
        """
        async with self._lock:
            quotas = {**self._cache.quotas(), namespace: max_bytes}
            await self._save({name: limit for name, limit in quotas.items() if limit})
        self._on_saved()

    def _restore(self) -> None:
        now_s = time.monotonic()
        self._cache.restore_pins(self._pins.items(), now_s=now_s)
        self._cache.restore_quotas(self._quotas)

    async def _save(self, quotas: Mapping[bytes, int]) -> None:
        pins: Pins = dict(self._cache.pins())
        now_s, now_unix_s = time.monotonic(), time.time()
        ends = {
            digest: 0 if until_s is None else round((now_unix_s + until_s - now_s) * 1000)
            for digest, until_s in pins.items()
            if digest not in self._pins or self._pins[digest] != until_s
        }
        limits = {name: limit for name, limit in quotas.items() if self._quotas.get(name) != limit}
        ended = self._pins.keys() - pins.keys()
        unset = self._quotas.keys() - quotas.keys()
        if not (ends or limits or ended or unset):
            return

        def write(store: KvStore) -> None:
            admin = KvAdmin(store)
            admin.write_hash(PINS, _encoded(ends))
            admin.write_hash(QUOTAS, _encoded(limits))
            admin.drop_fields(PINS, [digest.hex().encode() for digest in ended])
            admin.drop_fields(QUOTAS, [name.hex().encode() for name in unset])
            admin.write_hash(MARK, _MARK_FIELDS)

        await self._store.call(write)
        self._pins, self._quotas = pins, dict(quotas)


def _read(store: KvStore) -> tuple[dict[bytes, int], dict[bytes, int]]:
    admin = KvAdmin(store)
    return decode_values(admin.read_hash(PINS)), decode_values(admin.read_hash(QUOTAS))


def _encoded(values: Mapping[bytes, int]) -> dict[bytes, bytes]:
    return {digest.hex().encode(): b"%d" % value for digest, value in values.items()}


def decode_values(fields: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Read digests and numbers; a field that is neither is left out."""
    values = {}
    for name, value in fields.items():
        try:
            digest = bytes.fromhex(name.decode())
        except ValueError:
            continue
        if (
            len(digest) == DIGEST_BYTES
            and value.isdigit()
            and len(value) <= _MAX_DIGITS
            and int(value) <= _MAX_VALUE
        ):
            values[digest] = int(value)
    return values
