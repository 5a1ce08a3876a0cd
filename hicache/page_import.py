"""Pages that come from outside: put together, checked value by value, then written.

Whoever may import is trusted with what pages mean, not with their form: nothing is written of a
page of which a value does not bear its own checksum, and nothing of what is there changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.errors import InvalidRequest
from chunkmesh.page_record import (
    RECORD_FIELD,
    EncodedPage,
    PageRecord,
    decode_record,
    field_layer,
)
from chunkmesh.store_thread import StoreThread
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.cache import PrefixCache
from hicache.page_values import is_sound

_RETRY_S = 0.5
MAX_PAGE_BYTES = 1 << 30
"""Most bytes of one page that are taken in."""


class ArrivingPage:
    """A page that comes in parts; owner of its values until it is whole."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.record: PageRecord | None = None
        self.record_value = b""
        self.layers: dict[int, bytes] = {}
        """Sound values."""
        self.is_refused = False
        """Whether a value was wrong; then nothing of the page is kept."""
        self._num_bytes = 0

    def add(self, fields: Iterable[pb.PageField]) -> None:
        """Take a part; the record comes first."""
        for field in fields:
            if not self.is_refused and not self._take(field.name, field.value):
                self.is_refused = True
                self.layers.clear()

    def _take(self, name: bytes, value: bytes) -> bool:
        self._num_bytes += len(value)
        if self._num_bytes > MAX_PAGE_BYTES:
            return False
        if self.record is None:
            self.record = decode_record(self.digest, value) if name == RECORD_FIELD else None
            self.record_value = value
            return self.record is not None
        layer = field_layer(name)
        if layer is None or not is_sound(self.digest, self.record, layer, value):
            return False
        self.layers[layer] = value
        return True


class PageImport:
    """One import; owner of its counts."""

    def __init__(self, *, cache: PrefixCache, bulk: StoreThread) -> None:
        self.counts = pb.ImportResponse()
        self._cache = cache
        self._bulk = bulk
        self._taken: dict[bytes, bytes] = {}
        """Namespaces of the pages that came before."""
        self._patience_s = 5.0
        """How long this import may still wait for pages that are not taken."""
        self.dry_run = False
        """Whether to check and count only."""

    async def take(self, page: ArrivingPage) -> None:
        """Write a whole page's layers that are not there yet.

        Raises:
            CacheFault: Redis does not answer.
        """
        record = page.record
        if page.is_refused or record is None or not page.layers:
            self.counts.num_refused += 1
            return
        if not self._has_family(page.digest, record):
            self.counts.num_refused += 1
            return
        known = self._cache.info(page.digest).layers
        new = [layer for layer in page.layers if not known >> layer & 1]
        if not new:
            self.counts.num_known += 1
            return
        if not self.dry_run and not await self._store(page, record, new):
            self.counts.num_refused += 1
            return
        self.counts.num_pages += 1
        self.counts.num_bytes += len(new) * record.format.layer_bytes

    def _has_family(self, digest: bytes, record: PageRecord) -> bool:
        """Whether a page begins its namespace, or hangs on a page of it that is there."""
        namespace = record.namespace
        if record.parent != namespace and namespace not in {
            self._taken.get(record.parent),
            self._known_namespace(record.parent),
        }:
            return False
        self._taken[digest] = namespace
        return True

    def _known_namespace(self, digest: bytes) -> bytes | None:
        """Return the namespace of a page that the cache knows."""
        if not self._cache.info(digest).layers:
            return None
        (run,) = self._cache.runs(namespace=None, below=digest, max_depth=1, now_s=time.monotonic())
        return run.namespace

    async def _store(self, page: ArrivingPage, record: PageRecord, new: Collection[int]) -> bool:
        """Return whether those layers are in Redis and in the index.

        A page that was evicted a moment ago can come back only when Redis has dropped it, so what
        is not taken at once is tried again as long as patience lasts.
        """
        layers = {layer: page.layers[layer] for layer in new}
        while not await self._write(page.digest, page.record_value, record, layers):
            if self._patience_s <= 0:
                return False
            self._patience_s -= _RETRY_S
            await asyncio.sleep(_RETRY_S)
        return True

    async def _write(
        self, digest: bytes, record_value: bytes, record: PageRecord, layers: dict[int, bytes]
    ) -> bool:
        encoded = EncodedPage(
            digest=digest,
            record=record_value,
            layers=tuple((layer, memoryview(layers[layer])) for layer in sorted(layers)),
        )
        (written,) = await self._bulk.call(lambda store: store.write_pages([encoded]))
        if not written:
            return False
        mask = sum(layer_mask(layer, layer + 1) for layer in layers)
        coverage = Coverage(
            layers=mask,
            model_layers=record.format.model_layers,
            layer_bytes=record.format.layer_bytes,
        )
        with contextlib.suppress(InvalidRequest):
            self._cache.commit(
                record.namespace, [(digest, record.parent, 0)], coverage, now_s=time.monotonic()
            )
        return self._cache.info(digest).layers & mask == mask
