"""Values of pages as Redis has them, each checked when it is read back or taken in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from chunkmesh.kv_admin import KvAdmin
from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import (
    LAYER_HEADER_BYTES,
    RECORD_FIELD,
    PageRecord,
    decode_record,
    is_sound_layer,
    layer_field,
    num_kv_bytes,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Some values of a page."""

    sound: tuple[tuple[bytes, bytes], ...]
    """(field, value)."""
    num_missing: int = 0
    num_damaged: int = 0

    @property
    def num_bytes(self) -> int:
        """KV bytes of the sound ones."""
        return num_kv_bytes(self.sound)


def read_values(store: KvStore, digest: bytes, layers: Sequence[int]) -> Iterator[Values]:
    """Yield a page's record with its first layers, then further layers; at most 4 MiB each.

    Each step blocks for Redis. Without a sound record there is nothing behind it.

    Raises:
        CacheFault: Redis does not answer.
    """
    admin = KvAdmin(store)
    value = admin.read_record(digest)
    record = None if value is None else decode_record(digest, value)
    if value is None or record is None:
        yield Values(sound=(), num_missing=value is None, num_damaged=value is not None)
        return
    first: tuple[tuple[bytes, bytes], ...] = ((RECORD_FIELD, value),)
    for group in admin.read_layers(digest, layers, layer_bytes=record.format.layer_bytes):
        sound = [
            (layer_field(layer), data)
            for layer, data in group
            if data is not None and is_sound(digest, record, layer, data)
        ]
        num_missing = sum(data is None for _, data in group)
        yield Values(
            sound=(*first, *sound),
            num_missing=num_missing,
            num_damaged=len(group) - len(sound) - num_missing,
        )
        first = ()


def is_sound(digest: bytes, record: PageRecord, layer: int, value: bytes) -> bool:
    """Whether a value is that of a page's layer."""
    if layer >= record.format.model_layers:
        return False
    header, payload = value[:LAYER_HEADER_BYTES], memoryview(value)[LAYER_HEADER_BYTES:]
    fits = len(payload) == record.format.layer_bytes
    return fits and is_sound_layer(digest, layer, header, payload)
