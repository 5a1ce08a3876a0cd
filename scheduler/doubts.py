"""Links and workers that failed lately: which to avoid, and how long not to try them again. Pure.

A pair of workers stands for the link from the first to the second, a worker with itself for the
worker. Each failure holds the pair for twice as long as the one before; a hold ends early when the
membership changes, since the failure may have been a death that was not known yet.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

FIRST_HOLD_S = 0.1
LONGEST_HOLD_S = 2.0
_FORGOTTEN_S = 60.0
"""Time after which a failure says nothing any more."""

Pair = tuple[str, str]
"""Ids of two workers, or of one twice."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Doubt:
    failed_s: float
    hold_s: float
    """How long the last failure holds, or would."""
    held_until_s: float


class Doubts:
    """Owns what is known against links and workers."""

    def __init__(self) -> None:
        """Trust everybody."""
        self._doubts: dict[Pair, _Doubt] = {}

    def add(self, pair: Pair, now_s: float) -> None:
        """Note a failure."""
        self._doubts = {
            each: doubt
            for each, doubt in self._doubts.items()
            if now_s - doubt.failed_s < _FORGOTTEN_S
        }
        before = self._doubts.get(pair)
        hold_s = FIRST_HOLD_S if before is None else min(2 * before.hold_s, LONGEST_HOLD_S)
        self._doubts[pair] = _Doubt(failed_s=now_s, hold_s=hold_s, held_until_s=now_s + hold_s)

    def has(self, pair: Pair) -> bool:
        """Whether a pair has failed and not proved itself since."""
        return pair in self._doubts

    def is_held(self, pair: Pair, now_s: float) -> bool:
        """Whether a pair must not be tried now."""
        doubt = self._doubts.get(pair)
        return doubt is not None and now_s < doubt.held_until_s

    def lift_holds(self) -> None:
        """Let everything be tried, because the membership has changed."""
        self._doubts = {
            pair: dataclasses.replace(doubt, held_until_s=doubt.failed_s)
            for pair, doubt in self._doubts.items()
        }

    def forgive(self, pairs: Iterable[Pair]) -> None:
        """Trust pairs that have proved themselves."""
        for pair in pairs:
            self._doubts.pop(pair, None)


def pairs_of(route: tuple[str, ...]) -> list[Pair]:
    """Return the links and the workers of a route."""
    return [*itertools.pairwise(route), *((each, each) for each in route)]
