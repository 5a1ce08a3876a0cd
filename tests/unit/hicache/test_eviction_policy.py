"""Which page goes first."""

from __future__ import annotations

from hicache.cache import PrefixCache
from hicache.eviction_policy import PolicyName
from tests.cache_samples import PAGE_BYTES, store
from tests.page_samples import chain

A, B, C, D = (chain(1, name=name) for name in "abcd")


def full_cache(policy: PolicyName) -> PrefixCache:
    """Return a cache with room for three pages."""
    return PrefixCache(name="a", budget_bytes=3 * PAGE_BYTES, policy=policy)


def use(cache: PrefixCache, digests: tuple[bytes, ...], times: int = 1) -> None:
    """Match a prompt."""
    for _ in range(times):
        cache.match(digests, lease_ttl_s=0, now_s=0)


def left(cache: PrefixCache) -> str:
    """Name the prompts that are there."""
    prompts = {"a": A, "b": B, "c": C, "d": D}
    return "".join(name for name, digests in prompts.items() if cache.peek(digests))


def test_lru_takes_what_was_used_longest_ago() -> None:
    """Hits do not count, their time does."""
    cache = full_cache("lru")
    for digests in (A, B, C):
        store(cache, digests)
    use(cache, B, times=5)
    use(cache, A)
    use(cache, C)
    store(cache, D)
    assert left(cache) == "acd"


def test_lfu_takes_what_was_used_least() -> None:
    """A system prompt of every hour outlives a burst."""
    cache = full_cache("lfu")
    for digests in (A, B, C):
        store(cache, digests)
    use(cache, A, times=3)
    use(cache, B)
    use(cache, C, times=2)
    store(cache, D)
    assert left(cache) == "acd"


def test_lfu_breaks_ties_by_recency() -> None:
    """Of equals the older goes."""
    cache = full_cache("lfu")
    for digests in (A, B, C):
        store(cache, digests)
    for digests in (B, A, C):
        use(cache, digests)
    store(cache, D)
    assert left(cache) == "acd"


def test_lfu_lets_newcomers_in() -> None:
    """A page just stored has no hits; if it went first, the cache would never change again."""
    cache = full_cache("lfu")
    for digests in (A, B, C):
        store(cache, digests)
        use(cache, digests)
    store(cache, D)
    assert left(cache) == "bcd"
    cache.unlinked(A)
    store(cache, A)
    assert left(cache) == "abc"


def test_priority_takes_the_lowest_then_the_oldest() -> None:
    """A page is worth what the best request that filled it was worth."""
    cache = full_cache("priority")
    store(cache, A, priority=-1)
    store(cache, A, priority=2)
    store(cache, B, priority=1)
    store(cache, C, priority=1)
    use(cache, B)
    store(cache, D, priority=1)
    assert left(cache) == "abd"


def test_priority_does_not_keep_a_newcomer_of_less_worth() -> None:
    """A batch job must not push out what people wait for."""
    cache = full_cache("priority")
    for digests in (A, B, C):
        store(cache, digests, priority=1)
    assert store(cache, D, priority=0) == 0
    assert left(cache) == "abc"


def test_a_page_never_goes_before_what_hangs_below_it() -> None:
    """The order counts among leaves only."""
    cache = full_cache("lfu")
    digests = chain(3)
    store(cache, digests)
    use(cache, digests, times=2)
    store(cache, chain(1, name="new"))
    assert cache.peek(digests) == 2
