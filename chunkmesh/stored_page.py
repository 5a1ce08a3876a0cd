"""A page in Redis as its replies show it: its key, whether it is sound, what it covers. Pure."""

from __future__ import annotations

import dataclasses
from typing import Literal

from chunkmesh.coverage import Coverage
from chunkmesh.page_record import (
    PageRecord,
    decode_record,
    field_layer,
)
from chunkmesh.pages import DIGEST_BYTES

KEY_PREFIX = b"cm:"

PageRead = Literal["ok", "missing", "damaged"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """A page found by a scan."""

    digest: bytes
    record: PageRecord | None
    """None if it is not one of this version."""
    coverage: Coverage | None
    """Layers that have a value, unchecked; None without a record or a layer."""


def page_key(digest: bytes) -> bytes:
    """Return the key of a page."""
    return KEY_PREFIX + digest.hex().encode()


def describe_page(key: bytes, record: object, fields: object) -> StoredPage:
    """Read what HGET of the record and HKEYS replied for a key that names a digest."""
    digest = bytes.fromhex(key[len(KEY_PREFIX) :].decode())
    decoded = decode_record(digest, record) if isinstance(record, bytes) else None
    if decoded is None or not isinstance(fields, list):
        return StoredPage(digest=digest, record=None, coverage=None)
    form = decoded.format
    layers = 0
    for field in fields:
        layer = field_layer(field) if isinstance(field, bytes) else None
        if layer is not None and layer < form.model_layers:
            layers |= 1 << layer
    coverage = Coverage(layers=layers, model_layers=form.model_layers, layer_bytes=form.layer_bytes)
    return StoredPage(
        digest=digest, record=decoded, coverage=coverage if coverage.is_sound else None
    )


def key_digest(key: object) -> bytes | None:
    """Return the digest that a key names, if it does; only its canonical spelling counts."""
    if not isinstance(key, bytes):
        return None
    text = key[len(KEY_PREFIX) :]
    try:
        digest = bytes.fromhex(text.decode())
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES and page_key(digest) == key else None
