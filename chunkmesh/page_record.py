"""The bytes of a page in Redis: one record a page, one value a layer. Pure.

Whatever is read back is treated as hostile: a value is used only if its length, version, layer and
checksum are right, and the checksum is seeded with the page's digest, so that a value of another
page is as wrong as a damaged one.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import xxhash

from chunkmesh.coverage import MAX_LAYER_BYTES, MAX_MODEL_LAYERS

RECORD_FIELD = b"m"
LAYER_HEADER_BYTES = 16
_VERSION = 2
_RECORD = struct.Struct("<4sHBxIIIQ32s32s")
_RECORD_MAGIC = b"CMPG"
_CHECKSUM = struct.Struct("<Q")
RECORD_BYTES = _RECORD.size + _CHECKSUM.size
_LAYER = struct.Struct("<2sHIQ")
_LAYER_MAGIC = b"CL"
_DTYPE_CODES = {"float32": 1, "bfloat16": 2, "float16": 3}
_DTYPES = {code: name for name, code in _DTYPE_CODES.items()}

Bytes = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageFormat:
    """What all pages of one model, KV dtype and page size have in common, whatever their salt."""

    model_layers: int
    """1..4096."""
    dtype: str
    """float32, bfloat16 or float16."""
    page_tokens: int
    """>= 1."""
    layer_bytes: int
    """Bytes of one page in one layer, 1..MAX_LAYER_BYTES."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageRecord:
    """What is known of a page beside its layers."""

    format: PageFormat
    namespace: bytes
    """First link of its digest chain, 32 bytes."""
    parent: bytes
    """Digest of the page before it; of the namespace for the first. 32 bytes."""
    page_index: int
    """Index in its prompt, from 0."""


def layer_field(layer: int) -> bytes:
    """Return the name of a layer's field."""
    return b"%d" % layer


def field_layer(field: bytes) -> int | None:
    """Return the layer that a field holds, or None if it holds none."""
    if not (field.isdigit() and len(field) <= 4):
        return None
    layer = int(field)
    return layer if layer_field(layer) == field else None


def num_kv_bytes(values: Iterable[tuple[bytes, bytes]]) -> int:
    """Count what a page takes by its fields' values, without the record and the layers' headers."""
    layers = (value for field, value in values if field != RECORD_FIELD)
    return sum(len(value) - LAYER_HEADER_BYTES for value in layers)


def encode_record(digest: bytes, record: PageRecord) -> bytes:
    """Return the value of a page's record field."""
    form = record.format
    body = _RECORD.pack(
        _RECORD_MAGIC,
        _VERSION,
        _DTYPE_CODES[form.dtype],
        form.model_layers,
        record.page_index,
        form.page_tokens,
        form.layer_bytes,
        record.namespace,
        record.parent,
    )
    return body + _CHECKSUM.pack(_checksum(digest, body))


def decode_record(digest: bytes, value: bytes | memoryview) -> PageRecord | None:
    """Return the record, or None if the value is not exactly what this version writes."""
    if len(value) != RECORD_BYTES:
        return None
    body = value[: _RECORD.size]
    if _CHECKSUM.unpack(value[_RECORD.size :]) != (_checksum(digest, body),):
        return None
    fields = _RECORD.unpack(body)
    if _RECORD.pack(*fields) != bytes(body):
        return None  # padding is in use
    magic, version, code, model_layers, page_index, page_tokens, layer_bytes, namespace, parent = (
        fields
    )
    known = (magic, version) == (_RECORD_MAGIC, _VERSION) and code in _DTYPES
    if not known or not (
        0 < model_layers <= MAX_MODEL_LAYERS and page_tokens and 0 < layer_bytes <= MAX_LAYER_BYTES
    ):
        return None
    form = PageFormat(
        model_layers=model_layers,
        dtype=_DTYPES[code],
        page_tokens=page_tokens,
        layer_bytes=layer_bytes,
    )
    return PageRecord(format=form, namespace=namespace, parent=parent, page_index=page_index)


class PageMemory:
    """Memory that values are encoded into, kept for the next ones; for one thread.

    Fresh memory has to be mapped by the system, which takes several times as long as the copy.
    """

    def __init__(self) -> None:
        """Have none yet."""
        self._values: list[Bytes] = []
        self._num_taken = 0

    def clear(self) -> None:
        """Take back all that was handed out; nobody may use it any more."""
        self._num_taken = 0

    def take(self, num_bytes: int) -> Bytes:
        """Hand out memory with any contents, until the next clear."""
        if self._num_taken == len(self._values):
            self._values.append(np.empty(num_bytes, dtype=np.uint8))
        elif len(self._values[self._num_taken]) != num_bytes:
            self._values[self._num_taken] = np.empty(num_bytes, dtype=np.uint8)
        self._num_taken += 1
        return self._values[self._num_taken - 1]


def encode_layer(digest: bytes, layer: int, data: Bytes, memory: PageMemory) -> memoryview:
    """Return the value of one layer: a copy of flat data behind its header.

    Sound only if nobody writes data meanwhile; the copy then stands on its own.
    """
    value = memory.take(LAYER_HEADER_BYTES + data.nbytes)
    value[LAYER_HEADER_BYTES:] = data
    checksum = _checksum(digest, value[LAYER_HEADER_BYTES:].data, layer)
    _LAYER.pack_into(value.data, 0, _LAYER_MAGIC, _VERSION, layer, checksum)
    return value.data


def is_sound_layer(
    digest: bytes, layer: int, header: bytes | memoryview, payload: bytes | memoryview
) -> bool:
    """Check one layer's value, cut behind its header of LAYER_HEADER_BYTES."""
    expected = (_LAYER_MAGIC, _VERSION, layer, _checksum(digest, payload, layer))
    return _LAYER.unpack(header) == expected


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPage:
    """A page of some layers, ready to be written."""

    digest: bytes
    record: bytes
    layers: tuple[tuple[int, memoryview], ...]
    """(layer, value) in ascending order."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return len(self.record) + sum(len(value) for _, value in self.layers)

    def commands(self, max_bytes: int) -> Iterator[list[bytes | memoryview]]:
        """Yield field and value lists of at most max_bytes (or one value) each."""
        fields: list[bytes | memoryview] = [RECORD_FIELD, self.record]
        num_bytes = len(self.record)
        for layer, value in self.layers:
            if num_bytes + len(value) > max_bytes and fields:
                yield fields
                fields, num_bytes = [], 0
            fields += (layer_field(layer), value)
            num_bytes += len(value)
        yield fields


def encode_page(
    digest: bytes,
    record: PageRecord,
    layers: Iterable[tuple[int, Bytes]],
    memory: PageMemory | None = None,
) -> EncodedPage:
    """Return a page of some (layer, flat data) in ascending order, copied as by encode_layer.

    It is good until memory is cleared; without memory it has its own.
    """
    memory = memory or PageMemory()
    return EncodedPage(
        digest=digest,
        record=encode_record(digest, record),
        layers=tuple((layer, encode_layer(digest, layer, data, memory)) for layer, data in layers),
    )


def _checksum(digest: bytes, data: bytes | memoryview, layer: int = 0) -> int:
    seed = (int.from_bytes(digest[:8], "little") + layer) % 2**64
    return int(xxhash.xxh3_64_intdigest(data, seed=seed))
