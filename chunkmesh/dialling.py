"""Which of several servers is asked next, and when. Pure: times and dice are the caller's.

In the order of the list, but one that cannot serve now is left alone for a while: one that says
when to come back not before that, one that does not answer longer each time. Used by workers for
schedulers, and by clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from chunkmesh.address import HostPort

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


@dataclasses.dataclass(slots=True)
class _Known:
    """What is known of one server."""

    address: HostPort
    not_before_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    """Of the next failure."""


class Dialling:
    """Owner of what one caller knows of its servers."""

    def __init__(self, servers: Sequence[HostPort], dice: Callable[[], float]) -> None:
        """Take at least one server; dice returns numbers in [0, 1)."""
        self._known = {address: _Known(address) for address in servers}
        self._order = list(self._known)
        """Whom to ask, the first that may be asked first."""
        self._dice = dice

    def next(self, now_s: float) -> tuple[HostPort, float]:
        """Return whom to ask, and how many seconds to wait before that."""
        chosen = min(
            (self._known[address] for address in self._order),
            key=lambda known: max(now_s, known.not_before_s),
        )
        return chosen.address, max(0.0, chosen.not_before_s - now_s)

    def served(self, server: HostPort) -> None:
        """Take note that one serves: it is the first to be asked again."""
        self._known[server] = _Known(server)
        self._order.remove(server)
        self._order.insert(0, server)

    def failed(self, server: HostPort, now_s: float, *, at_least_s: float = 0.0) -> None:
        """Take note that one does not answer; others go before it from now on."""
        known = self._known[server]
        known.not_before_s = now_s + max(at_least_s, known.pause_s) * (0.5 + self._dice())
        known.pause_s = min(2 * known.pause_s, _LONGEST_PAUSE_S)
        self._pass_over(server)

    def refused(self, server: HostPort, now_s: float, *, retry_after_s: float) -> None:
        """Take note that one lives, and is not to be asked again before retry_after_s."""
        known = self._known[server]
        known.pause_s = _FIRST_PAUSE_S
        known.not_before_s = now_s + retry_after_s * (1 + 0.5 * self._dice())
        self._pass_over(server)

    def _pass_over(self, server: HostPort) -> None:
        """Let others go first, in the order of the list."""
        self._order.remove(server)
        self._order.append(server)
