"""How often routes were lost, and how soon those who ran on them went on. Pure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Self, get_args

from scheduler.events import LossCause
from scheduler.part import Part
from scheduler.request import Request

LOSS_CAUSES: tuple[LossCause, ...] = get_args(LossCause)


@dataclasses.dataclass(slots=True, kw_only=True)
class RecoveryCounts:
    """Since the start."""

    routes: dict[LossCause, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(LOSS_CAUSES, 0)
    )
    """Routes that were lost with outputs on them, by cause."""
    outputs: int = 0
    """Outputs that were parked because their route was lost."""

    def copy(self) -> Self:
        """Return the counts as they are now."""
        return copy.deepcopy(self)


@dataclasses.dataclass(slots=True, kw_only=True)
class _Open:
    """A loss after which nothing has gone on yet."""

    lost_s: float
    waiting: set[Request]
    """Outputs that lost their route and have not ended; never empty."""


class Recoveries:
    """Owner of the counts."""

    def __init__(self) -> None:
        """Begin with none."""
        self.counts = RecoveryCounts()
        self._open: list[_Open] = []
        self._took_s: list[float] = []
        """From each loss to the first result of an output that was resumed after it."""

    @property
    def is_open(self) -> bool:
        """Whether nothing has gone on yet after some loss."""
        return bool(self._open)

    def lost(self, parked: Iterable[Request], cause: LossCause, now_s: float) -> None:
        """Note that outputs wait again, because their route was lost."""
        waiting = set(parked)
        if not waiting:
            return
        self.counts.routes[cause] += 1
        self.counts.outputs += len(waiting)
        self._open.append(_Open(lost_s=now_s, waiting=waiting))

    def computed(self, parts: Iterable[Part], now_s: float) -> None:
        """Note the results of a microbatch."""
        requests = {part.request for part in parts}
        for each in self._open:
            if each.waiting & requests:
                self._took_s.append(now_s - each.lost_s)
                each.waiting.clear()
        self._close()

    def ended(self, request: Request) -> None:
        """Note that an output has ended."""
        if self._open:
            for each in self._open:
                each.waiting.discard(request)
            self._close()

    def take_seconds(self) -> list[float]:
        """Return how long those recoveries took that have ended since this was asked last."""
        taken, self._took_s = self._took_s, []
        return taken

    def _close(self) -> None:
        """Forget the losses that nobody waits after."""
        self._open = [each for each in self._open if each.waiting]
