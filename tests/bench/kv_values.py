"""The values of the page store's benches, written and read by ChunkMesh and by bare redis-py.

All write the same bytes, about as many as a load or store of a worker moves at once, and nobody
has more on its way than one batch of pages.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import redis

from chunkmesh.kv_pages import MAX_BATCH_BYTES
from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import PageFormat, PageMemory, PageRecord, encode_page
from tests.page_samples import NAMESPACE, chain, parents

NUM_LAYERS = 8
"""Of a page; each is a value of its own."""
TOTAL_BYTES = 128 << 20

_Encodable = bytes | bytearray | memoryview | str | int | float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Pages of one size."""

    layer_bytes: int

    @property
    def num_pages(self) -> int:
        """Pages of a prompt."""
        return TOTAL_BYTES // (NUM_LAYERS * self.layer_bytes)

    @property
    def format(self) -> PageFormat:
        """What the pages have in common."""
        return PageFormat(
            model_layers=NUM_LAYERS,
            dtype="bfloat16",
            page_tokens=128,
            layer_bytes=self.layer_bytes,
        )

    def batches(self) -> Iterator[slice]:
        """Cut the pages as a worker does."""
        step = max(1, MAX_BATCH_BYTES // (NUM_LAYERS * self.layer_bytes))
        for start in range(0, self.num_pages, step):
            yield slice(start, min(start + step, self.num_pages))

    def rate(self, call: Callable[[], object]) -> float:
        """Return the GB/s of a call that moves all pages."""
        started_s = time.perf_counter()
        call()
        return TOTAL_BYTES / 1e9 / (time.perf_counter() - started_s)

    def cost(self, call: Callable[[], object]) -> float:
        """Return the ms of processor time that this process takes for a GB."""
        started_s = time.process_time()
        call()
        return 1e3 * (time.process_time() - started_s) / (TOTAL_BYTES / 1e9)


class Pages:
    """Pages copied out of a pool, checksummed and written; read into staging and checked."""

    def __init__(self, values: Values, urls: Sequence[str]) -> None:
        self._values = values
        self._store = KvStore(*urls, timeout_s=10.0)
        self._digests = chain(values.num_pages)
        shape = (values.num_pages, NUM_LAYERS, values.layer_bytes)
        self._pool = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        self._memory = PageMemory()
        self._staging = np.zeros(shape, dtype=np.uint8)

    def write(self) -> None:
        """Write all pages."""
        before = parents(self._digests)
        for batch in self._values.batches():
            self._memory.clear()
            encoded = [
                encode_page(
                    self._digests[index],
                    PageRecord(
                        format=self._values.format,
                        namespace=NAMESPACE,
                        parent=before[index],
                        page_index=index,
                    ),
                    enumerate(self._pool[index]),
                    self._memory,
                )
                for index in range(batch.start, batch.stop)
            ]
            assert all(self._store.write_pages(encoded))

    def read(self) -> None:
        """Read all pages."""
        for batch in self._values.batches():
            reads = self._store.read_pages(
                self._digests[batch], self._values.format, 0, self._staging[batch]
            )
            assert set(reads) == {"ok"}

    def check(self) -> None:
        """Read once more into emptied staging, and compare with what was written."""
        self._staging[:] = 0
        self.read()
        assert np.array_equal(self._staging, self._pool)

    def close(self) -> None:
        """Close the connections."""
        self._store.close()


class OneByOne:
    """SET and GET of one value after another, unchecked."""

    def __init__(self, values: Values, url: str) -> None:
        self._client = redis.Redis.from_url(url, protocol=2)
        self._layers = _layers(values)
        self._keys = [f"one {index}" for index in range(values.num_pages * NUM_LAYERS)]

    def write(self) -> None:
        """Write all values."""
        for index, key in enumerate(self._keys):
            self._client.set(key, self._layers[index % NUM_LAYERS])

    def read(self) -> None:
        """Read all values."""
        for index, key in enumerate(self._keys):
            value = self._client.get(key)
            assert isinstance(value, bytes)
            assert len(value) == len(self._layers[index % NUM_LAYERS])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class Pipelined:
    """HSET and HMGET of one hash a page, a batch of pages in each pipeline, unchecked."""

    def __init__(self, values: Values, url: str) -> None:
        self._values = values
        self._client = redis.Redis.from_url(url, protocol=2)
        self._page: dict[_Encodable, _Encodable] = {
            str(layer): value for layer, value in enumerate(_layers(values))
        }

    def write(self) -> None:
        """Write all pages."""
        for batch in self._values.batches():
            pipeline = self._client.pipeline(transaction=False)
            for index in range(batch.start, batch.stop):
                pipeline.hset(f"page {index}", mapping=self._page)
            pipeline.execute()

    def read(self) -> None:
        """Read all pages."""
        fields = list(self._page)
        for batch in self._values.batches():
            pipeline = self._client.pipeline(transaction=False)
            for index in range(batch.start, batch.stop):
                pipeline.hmget(f"page {index}", fields)
            for found in pipeline.execute():
                assert [len(value) for value in found] == [self._values.layer_bytes] * NUM_LAYERS

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _layers(values: Values) -> list[bytes]:
    random = np.random.default_rng(0)
    return [random.bytes(values.layer_bytes) for _ in range(NUM_LAYERS)]
