"""Who may wait at all, and whose turn it is, whatever route it waits for. Pure.

Users of one priority take turns (fair_turns.py) and have limits of their own (user_shares.py). A
full queue makes room for who has less in it: the user with most in it loses its last request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chunkmesh.errors import ChunkMeshError, InvalidRequest, Overloaded
from scheduler.admission import too_large
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.fair_queue import place
from scheduler.fair_turns import FairTurns
from scheduler.request import Request
from scheduler.user_shares import OVERLOADED_RETRY_S, UserShares


class FairDoor:
    """Owner of what each user has waiting and running, and of the turns."""

    def __init__(
        self, config: EngineConfig, waiting_of: Callable[[str], Iterable[Request]]
    ) -> None:
        """Begin with nobody; waiting_of returns whatever waits of a user, in any order."""
        self.shares = UserShares(config)
        self._config = config
        self._waiting_of = waiting_of
        self._turns = FairTurns()

    def refusal(self, spec: RequestSpec, *, num_pages: int) -> ChunkMeshError | None:
        """Return why a request must not wait for a pool of num_pages, if so."""
        limit = self._config.max_running_requests
        if spec.num_outputs > limit:
            return InvalidRequest(
                f"n is {spec.num_outputs}, at most {limit} outputs run at a time",
                field="sampling_params.n",
            )
        if (error := too_large(spec, self._config, num_pages)) is not None:
            return error
        if (limited := self.shares.refusal(spec)) is not None:
            return limited
        if self._is_full() and self._has_most(spec.user) is None:
            return Overloaded(
                f"{self.shares.all.num_waiting} requests are waiting, "
                f"the limit is {self._config.max_queued_requests}",
                retry_after_s=OVERLOADED_RETRY_S,
            )
        return None

    def makes_room(self, spec: RequestSpec) -> tuple[str, Overloaded] | None:
        """Return which request must go for one that was not refused, and why, if any must."""
        if not self._is_full() or (last := self._has_most(spec.user)) is None:
            return None
        num_waiting = self.shares.of(last.spec.user).num_waiting
        limit = self._config.max_queued_requests
        reason = f"{num_waiting} of the {limit} requests that may wait were this user's"
        return last.request_id, Overloaded(
            f"{reason}; its last one made room for another user's",
            retry_after_s=OVERLOADED_RETRY_S,
        )

    def take_turn(self, spec: RequestSpec) -> int:
        """Return the turn of a request that is let in."""
        return self._turns.take(spec)

    def waits(self, request: Request) -> None:
        """Note that an output waits, for the first time or again."""
        self.shares.waits(request)

    def admitted(self, request: Request) -> None:
        """Note that an output that waited runs, with those that it stands for."""
        self.shares.admitted(request)
        self._turns.served(request.spec.priority, request.turn)
        self._rest()

    def gone(self, request: Request) -> None:
        """Forget an output that has ended, waiting or running."""
        self.shares.gone(request)
        self._rest()

    def _is_full(self) -> bool:
        """Whether as many wait as may."""
        return self.shares.all.num_waiting >= self._config.max_queued_requests

    def _rest(self) -> None:
        """Let turns begin anew once nobody waits."""
        if not self.shares.all.num_waiting:
            self._turns.rest()

    def _has_most(self, user: str) -> Request | None:
        """Return the last one that never ran of who has most waiting, if that is more than user.

        By two at least, so that both do not take turns in pushing each other out.
        """
        most = self.shares.has_most_waiting()
        if self.shares.of(most).num_waiting < self.shares.of(user).num_waiting + 2:
            return None
        new = (each for each in self._waiting_of(most) if each.is_new)
        return max(new, key=place, default=None)
