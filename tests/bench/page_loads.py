"""How fast a stage's page I/O loads a long prefix from Redis into staging: one server and four.

Pages are those of Qwen3-8B's shape on one stage: 36 layers of 512 KiB. Both processes, client and
server, share the machine's processors, so that the client's processor time for a GB is told too.
Run: python -m tests.bench.page_loads [--pages N] [--rounds N] (starts Valkey servers of its own)
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import PageFormat, PageRecord, encode_page
from stage_worker.page_io import PageIO
from stage_worker.page_jobs import LoadResult, PageIOLimits, StoreResult
from tests.bench import machine
from tests.bench.measure import Sample, cell, interleave, table
from tests.page_samples import NAMESPACE, chain, parents
from tests.played_store import PlayedStage
from tests.valkey import running_valkey

NUM_LAYERS, LAYER_BYTES = 36, 512 << 10
FORM = PageFormat(
    model_layers=NUM_LAYERS, dtype="bfloat16", page_tokens=128, layer_bytes=LAYER_BYTES
)
NUM_SHARDS = 4


class Loads:
    """Page I/O of one stage, and a prefix that Redis has."""

    def __init__(self, urls: Sequence[str], *, num_threads: int, num_pages: int) -> None:
        self._digests = chain(num_pages)
        self.num_bytes = num_pages * NUM_LAYERS * LAYER_BYTES
        self._data = np.random.default_rng(0).integers(0, 256, LAYER_BYTES, dtype=np.uint8)
        self._fill(KvStore(*urls, timeout_s=10.0))
        self._results: queue.Queue[LoadResult | StoreResult] = queue.Queue()
        self._page_io = PageIO(
            [KvStore(*urls, timeout_s=10.0) for _ in range(num_threads)],
            PlayedStage(),
            range(NUM_LAYERS),
            report=self._results.put,
            crashed=self._crashed,
            limits=PageIOLimits(staging_bytes=self.num_bytes),
        )
        self._page_io.join(FORM)
        self._next_id = 0

    def _fill(self, store: KvStore) -> None:
        for index, (digest, parent) in enumerate(
            zip(self._digests, parents(self._digests), strict=True)
        ):
            record = PageRecord(format=FORM, namespace=NAMESPACE, parent=parent, page_index=index)
            layers = ((layer, self._data) for layer in range(NUM_LAYERS))
            assert store.write_pages([encode_page(digest, record, layers)]) == (True,)
        store.close()

    def _crashed(self, error: BaseException) -> None:
        raise error

    def load(self) -> None:
        """Load all pages and drop them."""
        self._next_id += 1
        self._page_io.load(self._next_id, self._digests)
        result = self._results.get(timeout=120)
        assert isinstance(result, LoadResult)
        assert result.num_pages == len(self._digests)
        taken = self._page_io.take(self._next_id)
        assert taken is not None
        assert np.asarray(taken.ready[-1][-1]).tobytes() == self._data.tobytes()

    def rate(self) -> float:
        """Return the GB/s of a load."""
        begun_s = time.perf_counter()
        self.load()
        return self.num_bytes / 1e9 / (time.perf_counter() - begun_s)

    def cost(self) -> float:
        """Return the ms of this process's processor time for a GB of a load."""
        begun_s = time.process_time()
        self.load()
        return 1e3 * (time.process_time() - begun_s) / (self.num_bytes / 1e9)

    def close(self) -> None:
        """End the threads."""
        self._page_io.close()


@contextlib.contextmanager
def _urls(num_servers: int, *, tcp: bool) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        folders = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            for _ in range(num_servers)
        ]
        servers = [stack.enter_context(running_valkey(folder)) for folder in folders]
        yield [server.url if tcp else server.unix_url for server in servers]


def _row(num_servers: int, arguments: argparse.Namespace) -> list[str]:
    with _urls(num_servers, tcp=arguments.tcp) as urls:
        num_threads = arguments.threads or min(2 * num_servers, 8)
        loads = Loads(urls, num_threads=num_threads, num_pages=arguments.pages)
        loads.load()
        samples: dict[str, Sample] = {
            **interleave(arguments.rounds, {"rate": loads.rate}, unit="GB/s"),
            **interleave(arguments.rounds, {"cost": loads.cost}, unit="ms"),
        }
        loads.close()
    return [f"{num_servers}", f"{num_threads}", *(cell(sample) for sample in samples.values())]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page_loads")
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="two for each server if not given")
    parser.add_argument("--tcp", action="store_true", help="instead of unix sockets")
    arguments = parser.parse_args()
    print(f"python -m tests.bench.page_loads {' '.join(sys.argv[1:])}\n{machine.describe()}\n")
    rows = [_row(num_servers, arguments) for num_servers in (1, NUM_SHARDS)]
    print(table("Loads", ("servers", "threads", "rate", "client's time for a GB"), rows))


if __name__ == "__main__":
    main()
