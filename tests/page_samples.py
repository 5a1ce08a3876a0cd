"""Small pages for tests of the prefix cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chunkmesh.page_record import Bytes, EncodedPage, PageFormat, PageRecord, encode_page
from chunkmesh.page_room import PageRoom
from chunkmesh.stored_page import PageRead

NAMESPACE = hashlib.sha256(b"namespace").digest()
FORM = PageFormat(model_layers=4, dtype="float32", page_tokens=16, layer_bytes=256)


def chain(num_pages: int, *, name: str = "prompt") -> tuple[bytes, ...]:
    """Return the digests of a prompt's pages."""
    digests: list[bytes] = []
    parent = NAMESPACE
    for index in range(num_pages):
        parent = hashlib.sha256(parent + f"{name} {index}".encode()).digest()
        digests.append(parent)
    return tuple(digests)


def parents(digests: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return each page's parent."""
    return (NAMESPACE, *digests[:-1])


def layer_data(digest: bytes, layer: int, form: PageFormat = FORM) -> npt.NDArray[np.uint8]:
    """Return the bytes of a page in one layer; different for every page and layer."""
    seed = int.from_bytes(digest[:4], "little") + layer
    return np.random.default_rng(seed).integers(0, 256, form.layer_bytes, dtype=np.uint8)


def encoded(
    digests: tuple[bytes, ...], layers: range, form: PageFormat = FORM
) -> tuple[EncodedPage, ...]:
    """Return a prompt's pages as one writer stores them."""
    return tuple(
        encode_page(
            digest,
            PageRecord(format=form, namespace=NAMESPACE, parent=parent, page_index=page_index),
            ((layer, layer_data(digest, layer, form)) for layer in layers),
        )
        for page_index, (digest, parent) in enumerate(zip(digests, parents(digests), strict=True))
    )


def read_page(
    digest: bytes,
    form: PageFormat,
    first_layer: int,
    values: Sequence[bytes | memoryview | None],
    into: Bytes,
) -> PageRead:
    """Fill a room with values (record, then layers) as a reader of replies does; check it."""
    room = PageRoom(digest, form, first_layer, into)
    layers = range(len(into))
    for value, parts in zip(values, room.parts(layers), strict=False):
        if value is not None and len(value) == sum(map(len, parts)):
            start = 0
            for part in parts:
                part[:] = value[start : start + len(part)]
                start += len(part)
    return room.check(layers, [None if value is None else len(value) for value in values])
