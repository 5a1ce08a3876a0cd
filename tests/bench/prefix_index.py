"""How long the prefix index takes for a prompt of 8192 pages (1M tokens of page 128).

Run: python -m tests.bench.prefix_index
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from collections.abc import Callable

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.prefix_index import PrefixIndex

NUM_PAGES = 8192
NUM_OTHER_PAGES = 100_000
GOAL_MS = 30.0
ROUNDS = 9


def _chain(name: str, num_pages: int) -> list[bytes]:
    digests = [hashlib.sha256(name.encode()).digest()]
    while len(digests) <= num_pages:
        digests.append(hashlib.sha256(digests[-1]).digest())
    return digests


def _cover(index: PrefixIndex, chain: list[bytes]) -> None:
    coverage = Coverage(layers=layer_mask(0, 32), model_layers=32, layer_bytes=1000)
    for parent, digest in itertools.pairwise(chain):
        index.cover(digest, parent, coverage)


def _measure(call: Callable[[], object]) -> str:
    times_ms = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - started_s) * 1000)
    return f"{statistics.median(times_ms):8.2f} {min(times_ms):8.2f}"


def main() -> None:
    """Print a table."""
    index, chain = PrefixIndex(), _chain("prompt", NUM_PAGES)
    for branch in range(NUM_OTHER_PAGES // 1000):
        _cover(index, _chain(f"other {branch}", 1000))
    _cover(index, chain)
    digests = [bytes(bytearray(digest)) for digest in chain[1:]]
    assert index.match(digests) == NUM_PAGES
    print(f"{NUM_PAGES} pages among {NUM_OTHER_PAGES} others; ms: median, best; goal {GOAL_MS}")
    print("match          ", _measure(lambda: index.match(digests)))
    print("lock and unlock", _measure(lambda: index.unlock(index.lock(digests))))
    print("cover again    ", _measure(lambda: _cover(index, chain)))


if __name__ == "__main__":
    main()
