"""Prompts in a prefix cache, for its tests. All pages have four layers of ten bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from chunkmesh.coverage import Coverage, layer_mask
from hicache.cache import PrefixCache
from tests.page_samples import NAMESPACE

FULL = Coverage(layers=layer_mask(0, 4), model_layers=4, layer_bytes=10)
PAGE_BYTES = FULL.num_bytes
OTHER_NAMESPACE = hashlib.sha256(b"another namespace").digest()


def store(
    cache: PrefixCache,
    digests: Sequence[bytes],
    *,
    namespace: bytes = NAMESPACE,
    priority: int = 0,
    coverage: Coverage = FULL,
    now_s: float = 0.0,
) -> int:
    """Commit a prompt's pages; return how many became visible."""
    parents = (namespace, *digests[:-1])
    pages = [(digest, parent, priority) for digest, parent in zip(digests, parents, strict=True)]
    return cache.commit(namespace, pages, coverage, now_s=now_s)


def restore_pins(
    cache: PrefixCache, pins: Sequence[tuple[bytes, float | None]], *, now_s: float = 0.0
) -> None:
    """Replace all pins at once."""
    for _ in cache.all_pins.restoring(dict(pins), now_s=now_s):
        pass


def over_quota(
    cache: PrefixCache, max_bytes: int, *, namespace: bytes = NAMESPACE, now_s: float = 0
) -> list[int]:
    """Return the bytes of the pages that a quota would evict."""
    sizes = cache.over_quota(namespace, max_bytes, now_s=now_s)
    return [size for size in sizes if size is not None]
