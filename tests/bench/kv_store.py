"""Bandwidth of the page store against a bare loop of redis-py over the same values.

Run: python -m tests.bench.kv_store (starts a Valkey of its own)
"""

from __future__ import annotations

import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import redis

from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import PageFormat, PageRecord, encode_page
from tests.page_samples import NAMESPACE, chain, parents
from tests.valkey import running_valkey

NUM_PAGES = 32
NUM_LAYERS = 8
LAYER_BYTES = 512 * 1024
ROUNDS = 7
TOTAL_GB = NUM_PAGES * NUM_LAYERS * LAYER_BYTES / 1e9

FORM = PageFormat(
    model_layers=NUM_LAYERS,
    dtype="bfloat16",
    page_tokens=128,
    layer_bytes=LAYER_BYTES,
)


def _gb_per_s(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return TOTAL_GB / (time.perf_counter() - started_s)


class _Bare:
    """SET and GET of the same values, one after another, unchecked."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, protocol=2)
        self._value = np.random.default_rng(0).bytes(LAYER_BYTES)
        self._keys = [f"bare {index}" for index in range(NUM_PAGES * NUM_LAYERS)]

    def write(self) -> None:
        for key in self._keys:
            self._client.set(key, self._value)

    def read(self) -> None:
        for key in self._keys:
            assert len(self._client.get(key) or b"") == LAYER_BYTES


class _Pages:
    """Pages copied, checksummed and written; read, checked and copied to staging."""

    def __init__(self, url: str) -> None:
        self._store = KvStore(url)
        self._digests = chain(NUM_PAGES)
        self._data = np.random.default_rng(0).integers(0, 256, LAYER_BYTES, dtype=np.uint8)
        self._staging = np.zeros((NUM_PAGES, NUM_LAYERS, LAYER_BYTES), dtype=np.uint8)

    def write(self) -> None:
        for index, digest in enumerate(self._digests):
            record = PageRecord(
                format=FORM,
                namespace=NAMESPACE,
                parent=parents(self._digests)[index],
                page_index=index,
            )
            layers = ((layer, self._data) for layer in range(NUM_LAYERS))
            assert self._store.write_pages([encode_page(digest, record, layers)]) == (True,)

    def read(self) -> None:
        reads = self._store.read_pages(self._digests, FORM, 0, self._staging)
        assert reads == ("ok",) * NUM_PAGES


def _compare(name: str, ours: Callable[[], None], bare: Callable[[], None]) -> None:
    ours()
    bare()
    pairs = [(_gb_per_s(ours), _gb_per_s(bare)) for _ in range(ROUNDS)]
    ratios = [mine / other for mine, other in pairs]
    print(
        f"{name:6} pages {max(mine for mine, _ in pairs):5.2f} GB/s, "
        f"bare {max(other for _, other in pairs):5.2f} GB/s, "
        f"ratio median {statistics.median(ratios):4.2f}, best {max(ratios):4.2f}"
    )


def main() -> None:
    """Print a table for TCP and for a unix socket."""
    with tempfile.TemporaryDirectory() as folder, running_valkey(pathlib.Path(folder)) as server:
        for name, url in (("tcp", server.url), ("unix", server.unix_url)):
            print(f"{name}: {NUM_PAGES} pages of {NUM_LAYERS} layers of {LAYER_BYTES} bytes")
            pages, bare = _Pages(url), _Bare(url)
            _compare("write", pages.write, bare.write)
            _compare("read", pages.read, bare.read)


if __name__ == "__main__":
    main()
