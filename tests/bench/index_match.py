"""`python -m tests.bench.index_match`: the prefix cache's index for prompts of up to 1M tokens.

Prints how long a match takes over the length of the match and over the size of the tree around it,
then what else a request and an admin ask for. Pages hold 128 tokens. Digests are new objects each
time, as from the wire, so that no hash is remembered. Times are the thread's processor time, so
that a busy machine does not count.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Sequence

from chunkmesh.coverage import Coverage, layer_mask
from hicache.cache import PrefixCache
from hicache.runs import PickedRuns
from hicache.selection import Below, Everything
from tests.bench.machine import describe
from tests.bench.measure import Sample, cell, interleave, pair_ratios, table

PAGE_TOKENS = 128
MATCH_TOKENS = (125_000, 250_000, 500_000, 1_000_000)
TREE_TOKENS = (1_000_000, 2_000_000, 4_000_000)
GOAL_MS = 30.0
ROUNDS = 15
_BRANCH_PAGES = 500
_NAMESPACE = hashlib.sha256(b"namespace").digest()
_COVERAGE = Coverage(layers=layer_mask(0, 36), model_layers=36, layer_bytes=1000)


def main() -> None:
    """Print both tables."""
    print(f"{describe()}\n")
    trees = {tokens: _tree(tokens) for tokens in TREE_TOKENS}
    gc.collect()
    _print_matches(trees)
    _print_operations(trees[TREE_TOKENS[-1]])


def _print_matches(trees: dict[int, tuple[PrefixCache, list[bytes]]]) -> None:
    work = {
        f"{match} of {tree}": _timed_match(cache, prompt[: _pages(match)])
        for tree, (cache, prompt) in trees.items()
        for match in MATCH_TOKENS
    }
    samples = interleave(ROUNDS, work, unit="ms")
    rows = [
        [f"{match:,}", f"{_pages(match)}"]
        + [_cell_of_match(samples[f"{match} of {tree}"], _pages(match)) for tree in TREE_TOKENS]
        for match in MATCH_TOKENS
    ]
    header = ["tokens matched", "pages"] + [f"among {tree:,} cached" for tree in TREE_TOKENS]
    print(table("Match and lease, in ms, and us a page", header, rows))
    small, large = TREE_TOKENS[0], TREE_TOKENS[-1]
    short, long = MATCH_TOKENS[0], MATCH_TOKENS[-1]
    longest = samples[f"{long} of {large}"]
    over_tree = pair_ratios(longest, samples[f"{long} of {small}"])
    over_match = pair_ratios(longest, samples[f"{short} of {large}"])
    print(f"goal: {GOAL_MS:.0f} ms for {long:,} tokens; median {longest.median:.1f} ms")
    print(f"{large // small} x the tree: {cell(over_tree)}")
    print(f"{long // short} x the match: {cell(over_match)}\n")


def _print_operations(filled: tuple[PrefixCache, list[bytes]]) -> None:
    cache, prompt = filled
    fresh = iter(range(10**6))
    below = prompt[len(prompt) // 2][:6]

    def store() -> None:
        _commit(cache, _chain(f"new {next(fresh)}", _pages(MATCH_TOKENS[0]), _NAMESPACE))

    def store_and_evict() -> None:
        store()
        cache.set_quota(_NAMESPACE, cache.num_bytes - 1000 * _COVERAGE.num_bytes, now_s=0)
        cache.set_quota(_NAMESPACE, 0, now_s=0)

    def list_runs() -> None:
        picked = PickedRuns(limit=1000, order="hits")
        for run in cache.runs(namespace=None, below=None, max_depth=0, now_s=0):
            picked.add(run)

    work: dict[str, Callable[[], object]] = {
        f"commit {_pages(MATCH_TOKENS[0])} new pages": store,
        "the same, and evict 1000": store_and_evict,
        "list namespaces": cache.namespaces,
        "select below half the prompt": lambda: list(cache.selecting(Below(prefix=below), now_s=0)),
        "select everything": lambda: list(cache.selecting(Everything(), now_s=0)),
        "list runs, most hits first": list_runs,
    }
    samples = interleave(ROUNDS, {name: _timed(call) for name, call in work.items()}, unit="ms")
    rows = [[name, cell(sample)] for name, sample in samples.items()]
    print(table(f"Among {TREE_TOKENS[-1]:,} cached tokens", ["operation", "time"], rows))


def _tree(num_tokens: int) -> tuple[PrefixCache, list[bytes]]:
    """Return a cache of so many tokens, and the longest prompt in it; all others branch off."""
    cache = PrefixCache(name="bench", budget_bytes=0)
    prompt = _chain("prompt", _pages(MATCH_TOKENS[-1]), _NAMESPACE)
    _commit(cache, prompt)
    known = [page for page, _ in prompt]
    while cache.num_pages < _pages(num_tokens):
        num_pages = min(_BRANCH_PAGES, _pages(num_tokens) - cache.num_pages)
        branch = _chain(f"branch {cache.num_pages}", num_pages, _any(known))
        _commit(cache, branch)
        known.extend(page for page, _ in branch)
    return cache, [page for page, _ in prompt]


def _any(digests: Sequence[bytes]) -> bytes:
    """Choose one, the same in each run."""
    return digests[int.from_bytes(digests[-1][:8], "little") % len(digests)]


def _chain(name: str, num_pages: int, parent: bytes) -> list[tuple[bytes, bytes]]:
    """Return (digest, parent) of pages that follow each other."""
    pages = []
    for index in range(num_pages):
        digest = hashlib.sha256(parent + f"{name} {index}".encode()).digest()
        pages.append((digest, parent))
        parent = digest
    return pages


def _commit(cache: PrefixCache, pages: Sequence[tuple[bytes, bytes]]) -> None:
    listed = [(digest, parent, 0) for digest, parent in pages]
    assert cache.commit(_NAMESPACE, listed, _COVERAGE, now_s=0) == len(pages)


def _timed_match(cache: PrefixCache, digests: Sequence[bytes]) -> Callable[[], float]:
    def measure() -> float:
        asked = [bytes(bytearray(digest)) for digest in digests]
        started_s = time.thread_time()
        hit = cache.match(asked, lease_ttl_s=10, now_s=0)
        took_s = time.thread_time() - started_s
        assert hit.num_pages == len(digests)
        cache.release(hit.lease_id, now_s=0)
        return took_s * 1000

    return measure


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        started_s = time.thread_time()
        call()
        return (time.thread_time() - started_s) * 1000

    return measure


def _cell_of_match(sample: Sample, num_pages: int) -> str:
    return f"{cell(sample)}; {sample.median * 1000 / num_pages:.2f} us"


def _pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS)


if __name__ == "__main__":
    main()
