"""Pins and quotas, kept in Redis so that they outlive hicache-server.

Redis is right whenever it has the mark of an earlier save; without it Redis was emptied, and gets
what this process still knows. The end of a pin is rounded up and the clocks are read in the order
that makes it later, never sooner: no replica ends a pin before the one that took it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeAlias

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from chunkmesh.kv_store import KvStore
from chunkmesh.pages import DIGEST_BYTES
from chunkmesh.store_thread import StoreThread
from hicache.cache import PrefixCache
from hicache.slices import in_slices

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

Pins: TypeAlias = dict[bytes, float | None]


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
        self._ends_ms: dict[bytes, int] = {}
        """As saved: digest -> Unix time in ms at which it ends, 0 for never."""
        self._quotas: dict[bytes, int] = {}
        """As saved."""

    def redis_lost(self) -> None:
        """Take note that Redis may hold nothing of what was saved."""
        self._pins, self._ends_ms, self._quotas = {}, {}, {}

    async def load(self) -> None:
        """Take pins and quotas from Redis, or give them to one that was emptied.

        Raises:
            CacheFault: Redis does not answer.
        """
        async with self._lock:
            if await self._store.call(lambda store: KvAdmin(store).read_hash(MARK)):
                ends_ms, quotas = await self._store.call(_read)
                known, self._pins = self._pins, await self._by_our_clock(ends_ms)
                self._ends_ms, self._quotas = ends_ms, quotas
                await self._restore(known)
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
                await self._restore(self._pins)
                raise
            try:
                await self._save_to_the_end()
            except CacheFault:
                await self._restore(self._pins)
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

    async def _by_our_clock(self, ends_ms: Mapping[bytes, int]) -> Pins:
        """Return when pins end; one that was known before ends when it was to end."""
        now_unix_s, now_s, known = time.time(), time.monotonic(), self._pins
        pins: Pins = {}
        async for digest, unix_ms in in_slices(ends_ms.items()):
            if digest in known and self._ends_ms.get(digest) == unix_ms:
                pins[digest] = known[digest]
            else:
                pins[digest] = now_s + unix_ms / 1000 - now_unix_s if unix_ms else None
        return pins

    async def _restore(self, known: Pins) -> None:
        """Let the cache have what is saved, but for known pins that are over and told so.

        In slices, or in one piece if there is no time for that; the lock is held.
        """
        now_s = time.monotonic()
        pins = {
            digest: until_s
            for digest, until_s in self._pins.items()
            if until_s is None or until_s > now_s or until_s != known.get(digest)
        }
        self._cache.restore_quotas(self._quotas)
        steps = self._cache.all_pins.restoring(pins, now_s=now_s)
        try:
            async for _ in in_slices(steps):
                pass
        finally:
            for _ in steps:
                pass

    async def _save_to_the_end(self) -> None:
        """Save what the cache has, also when the caller goes meanwhile: the change is made."""
        saving = asyncio.ensure_future(self._save(self._cache.quotas()))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await saving
            raise

    async def _save(self, quotas: Mapping[bytes, int]) -> None:
        """Write what differs from what was saved; the lock is held."""
        saved, pins, ends = self._pins, Pins(), dict[bytes, int]()
        now_s, now_unix_s = time.monotonic(), time.time()
        async for digest, until_s in in_slices(self._cache.all_pins.all()):
            pins[digest] = until_s
            if digest not in saved or saved[digest] != until_s:
                left_s = None if until_s is None else until_s - now_s
                ends[digest] = 0 if left_s is None else math.ceil((now_unix_s + left_s) * 1000)
        ended = [digest async for digest in in_slices(saved) if digest not in pins]
        if self._pins is not saved:  # Redis was emptied meanwhile
            await self._save(quotas)
            return
        limits = {name: limit for name, limit in quotas.items() if self._quotas.get(name) != limit}
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
        kept_ms = {digest: self._ends_ms[digest] for digest in pins.keys() & self._ends_ms.keys()}
        self._ends_ms = kept_ms | ends


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
