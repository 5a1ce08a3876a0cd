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
    """Room for the record and for consecutive layers of one page.

    A reader fills record and layers, which are as long as sound values are; values of another
    length fit nowhere.
    """

    def __init__(self, digest: bytes, form: PageFormat, first_layer: int, into: Bytes) -> None:
        """Have the layers' contents land in [layers, layer_bytes], sound or not."""
        self._digest = digest
        self._form = form
        self._first_layer = first_layer
        headers = memoryview(bytearray(LAYER_HEADER_BYTES * len(into)))
        self.record = memoryview(bytearray(RECORD_BYTES))
        self.layers = [
            (headers[LAYER_HEADER_BYTES * index :][:LAYER_HEADER_BYTES], memoryview(row))
            for index, row in enumerate(into)
        ]
        """Header and contents of each."""

    def check(self, lengths: Sequence[int | None]) -> PageRead:
        """Check a filled room; lengths are those of the values (record, then layers) in Redis."""
        if None in lengths:
            return "missing"
        record, *layers = lengths
        sound_bytes = LAYER_HEADER_BYTES + self._form.layer_bytes
        if record != RECORD_BYTES or any(length != sound_bytes for length in layers):
            return "damaged"
        decoded = decode_record(self._digest, self.record)
        if decoded is None or decoded.format != self._form:
            return "damaged"
        for index, (header, payload) in enumerate(self.layers):
            if not is_sound_layer(self._digest, self._first_layer + index, header, payload):
                return "damaged"
        return "ok"
