"""In which order pages go when room is needed; always leaves first. Pure.

Source: the policies of SGLang's radix cache
(https://docs.sglang.ai/advanced_features/server_arguments.html, --radix-eviction-policy).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.leaf_queue import Order, least_recently_used

PolicyName: TypeAlias = Literal["lru", "lfu", "priority"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """An order of eviction."""

    order: Order
    """The page with the least key goes first; a page's key never falls."""
    spares_newcomers: bool
    """Whether pages just stored go after all others, for else the order would never let any in."""


def _least_frequently_used(page: IndexedPage) -> tuple[int, ...]:
    return page.num_hits, page.last_used


def _lowest_priority(page: IndexedPage) -> tuple[int, ...]:
    return page.priority, page.last_used


POLICIES: Mapping[PolicyName, EvictionPolicy] = {
    "lru": EvictionPolicy(order=least_recently_used, spares_newcomers=False),
    "lfu": EvictionPolicy(order=_least_frequently_used, spares_newcomers=True),
    "priority": EvictionPolicy(order=_lowest_priority, spares_newcomers=False),
}
