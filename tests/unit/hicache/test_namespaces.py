"""What is cached in each namespace."""

from __future__ import annotations

import hashlib

from chunkmesh.coverage import Coverage, layer_mask
from hicache.cache import PrefixCache
from hicache.namespaces import NamespaceInfo
from tests.cache_samples import OTHER_NAMESPACE, PAGE_BYTES, store
from tests.page_samples import NAMESPACE, chain

INFO = NamespaceInfo(
    fingerprint=hashlib.sha256(b"weights").digest(),
    model="tiny",
    kv_dtype="float32",
    page_tokens=16,
    rope="default",
    adapter="",
    salted=False,
)


def test_namespaces_come_by_bytes() -> None:
    """Who takes the memory is the first question."""
    cache = PrefixCache(name="a", budget_bytes=0)
    store(cache, chain(1))
    store(cache, chain(3, name="other"), namespace=OTHER_NAMESPACE)
    cache.match(chain(1), lease_ttl_s=0, now_s=0)
    large, small = cache.namespaces()
    assert (large.namespace, large.num_bytes) == (OTHER_NAMESPACE, 3 * PAGE_BYTES)
    assert (small.namespace, small.num_pages, small.num_hits) == (NAMESPACE, 1, 1)


def test_layers_are_the_union_over_pages() -> None:
    """It shows at a glance which stage does not store."""
    cache = PrefixCache(name="a", budget_bytes=0)
    part = Coverage(layers=layer_mask(0, 1), model_layers=4, layer_bytes=10)
    rest = Coverage(layers=layer_mask(2, 3), model_layers=4, layer_bytes=10)
    store(cache, chain(1), coverage=part)
    store(cache, chain(1, name="b"), coverage=rest)
    (state,) = cache.namespaces()
    assert (state.layers, state.model_layers, state.num_partial_pages) == (0b0101, 4, 2)
    cache.invalidate(chain(1))
    assert cache.namespaces()[0].layers == 0b0100


def test_a_quota_without_pages_is_told_too() -> None:
    """Otherwise nobody could find and end it."""
    cache = PrefixCache(name="a", budget_bytes=0)
    cache.set_quota(NAMESPACE, 7, now_s=0)
    (state,) = cache.namespaces()
    assert (state.quota_bytes, state.num_pages, state.layers) == (7, 0, 0)


def test_a_namespace_is_described_by_what_was_said_last() -> None:
    """People read names, not digests."""
    cache = PrefixCache(name="a", budget_bytes=0)
    store(cache, chain(1))
    assert cache.namespaces()[0].info is None
    cache.describe(NAMESPACE, INFO)
    assert cache.namespaces()[0].info == INFO


def test_descriptions_of_namespaces_without_pages_do_not_pile_up() -> None:
    """Every salt is a namespace, and salts come and go."""
    cache = PrefixCache(name="a", budget_bytes=0)
    store(cache, chain(1))
    cache.describe(NAMESPACE, INFO)
    for number in range(5000):
        cache.describe(hashlib.sha256(bytes(number)).digest(), INFO)
    assert len(cache._infos.all) <= 1024
    assert cache.namespaces()[0].info == INFO
