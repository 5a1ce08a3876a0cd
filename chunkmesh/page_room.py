"""Where a page is read to, and whether what was read is sound. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from chunkmesh.page_record import (
    LAYER_HEADER_BYTES,
    RECORD_BYTES,
    Bytes,
    PageFormat,
    decode_record,
    is_sound_layer,
)
from chunkmesh.stored_page import PageRead


class PageRoom:
    """Room for the record and for consecutive layers of one page, read in one or more pieces."""

    def __init__(self, digest: bytes, form: PageFormat, first_layer: int, into: Bytes) -> None:
        """Have the layers' contents land in [layers, layer_bytes], sound or not."""
        self._digest = digest
        self._form = form
        self._first_layer = first_layer
        self._into = into
        self._record = memoryview(bytearray(RECORD_BYTES))
        self._headers = memoryview(bytearray(LAYER_HEADER_BYTES * len(into)))
        self._read: PageRead = "ok"

    def parts(self, layers: range) -> list[tuple[memoryview, ...]]:
        """Return where the record and some layers, counted from 0, go; each as long as if sound."""
        return [(self._record,), *((self._header(layer), self._payload(layer)) for layer in layers)]

    def check(self, layers: range, lengths: Sequence[int | None]) -> PageRead:
        """Check what was read into parts(layers), and say how the page is so far.

        lengths are those of the values in Redis, None for one that is not there; the parts of a
        value of another length were left alone.
        """
        if self._read != "missing":
            if None in lengths:
                self._read = "missing"
            elif not self._is_sound(layers, lengths):
                self._read = "damaged"
        return self._read

    def _is_sound(self, layers: range, lengths: Sequence[int | None]) -> bool:
        layer_bytes = LAYER_HEADER_BYTES + self._form.layer_bytes
        if list(lengths) != [RECORD_BYTES] + [layer_bytes] * len(layers):
            return False
        record = decode_record(self._digest, self._record)
        return (record is not None and record.format == self._form) and all(
            is_sound_layer(
                self._digest,
                self._first_layer + layer,
                self._header(layer),
                self._payload(layer),
            )
            for layer in layers
        )

    def _header(self, layer: int) -> memoryview:
        start = LAYER_HEADER_BYTES * layer
        return self._headers[start : start + LAYER_HEADER_BYTES]

    def _payload(self, layer: int) -> memoryview:
        return memoryview(self._into[layer])
