"""Names of the memory that pages lie in: whose contents outlive a route."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.decisions import RouteStands
from scheduler.registry import Registry
from tests.hellos import attached, hello, new_registry, stand


def _pool_ids(registry: Registry, worker_ids: str) -> tuple[str, ...]:
    """Let the newest route form; return the names of its stages' memory."""
    (stands, *_) = stand(registry, worker_ids)
    assert isinstance(stands, RouteStands)
    return stands.pool_ids


def test_pages_outlive_a_link_that_broke() -> None:
    """The same workers with as many pages keep their contents over an epoch."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    first = _pool_ids(registry, "ab")
    registry.fault("a", registry.epoch, "link broke", 10.0)
    registry.tick(11.0)
    assert _pool_ids(registry, "ab") == first
    assert len(set(first)) == 2


def test_pages_of_survivors_outlive_the_others() -> None:
    """With a spare in place of one stage only that stage's contents are gone."""
    registry = attached(("a", 0, 3), ("b", 3, 6), ("s", 3, 6))
    first = _pool_ids(registry, "ab")
    registry.lose("b", "gone", 1.0)
    second = _pool_ids(registry, "as")
    assert (second[0] == first[0], second[1] == first[1]) == (True, False)


def test_pages_do_not_outlive_a_join_with_another_number_of_them() -> None:
    """Even if that route never stood: the worker has made a new pool for it."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    registry.attach(hello("small", 3, 6, capacity=32), 0.0)
    first = _pool_ids(registry, "ab")
    registry.lose("b", "gone", 1.0)
    registry.lose("small", "gone, too", 2.0)
    registry.attach(hello("c", 3, 6), 3.0)
    assert _pool_ids(registry, "ac")[0] != first[0]


def test_who_attaches_again_has_served_others_meanwhile() -> None:
    """Between its streams a worker may have been another scheduler's stage."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    first = _pool_ids(registry, "ab")
    registry.lose("b", "its stream ended", 1.0)
    registry.attach(hello("b", 3, 6), 2.0)
    second = _pool_ids(registry, "ab")
    assert second[0] == first[0]
    assert second[1] != first[1]


@pytest.mark.parametrize(("host_tokens", "num_pages"), [((100, 70), 4), ((100, 0), 0)])
def test_the_smallest_host_memory_counts(host_tokens: tuple[int, int], num_pages: int) -> None:
    """A host page means the same page on every stage."""
    registry = new_registry()
    for name, layers, tokens in zip("ab", ((0, 3), (3, 6)), host_tokens, strict=True):
        told = dataclasses.replace(hello(name, *layers), host_capacity_tokens=tokens)
        registry.attach(told, 0.0)
    (stands,) = stand(registry, "ab")
    assert isinstance(stands, RouteStands)
    assert stands.num_host_pages == num_pages
