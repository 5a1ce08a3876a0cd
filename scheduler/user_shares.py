"""What each user has waiting and running, against the limits for one user and for all. Pure."""

from __future__ import annotations

import dataclasses

from chunkmesh.errors import ChunkMeshError, InvalidRequest, Overloaded
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.request import Request

OVERLOADED_RETRY_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a user, or all of them together, has at a time."""

    num_waiting: int = 0
    """Outputs in the queue: requests, and outputs that were preempted."""
    waiting_tokens: int = 0
    """Of their prompts."""
    num_running: int = 0
    """Outputs that have a row, or will get one with those of their request."""

    def __add__(self, other: Share) -> Share:
        return Share(
            num_waiting=self.num_waiting + other.num_waiting,
            waiting_tokens=self.waiting_tokens + other.waiting_tokens,
            num_running=self.num_running + other.num_running,
        )


class UserShares:
    """Counts of those who have anything; the rest is forgotten."""

    def __init__(self, config: EngineConfig) -> None:
        """Begin with nobody."""
        self._config = config
        self.all = Share()
        """Of all users together."""
        self._shares: dict[str, Share] = {}
        self._waiting: set[tuple[str, int]] = set()
        """Outputs that wait, by request and child, as are the next ones."""
        self._running: set[tuple[str, int]] = set()

    def of(self, user: str) -> Share:
        """Return what a user has."""
        return self._shares.get(user, Share())

    def has_most_waiting(self) -> str:
        """Return the user with most waiting; any if nobody waits."""
        return max(self._shares, key=lambda each: self._shares[each].num_waiting, default="")

    def waits(self, request: Request) -> None:
        """Count an output that begins to wait, waits again, or waits somewhere else."""
        self._leave(request)
        if (key := (request.request_id, request.child)) not in self._waiting:
            self._waiting.add(key)
            self._add(request, Share(num_waiting=1, waiting_tokens=request.prompt_tokens))

    def admitted(self, request: Request) -> None:
        """Count an output that waited and now runs, with those that it stands for."""
        self._wait_no_more(request)
        self._running.update((request.request_id, child) for child in request.children)
        self._add(request, Share(num_running=len(request.children)))

    def gone(self, request: Request) -> None:
        """Forget an output that has ended, waiting or running."""
        self._wait_no_more(request)
        self._leave(request)

    def may_run(self, request: Request) -> bool:
        """Whether a user may run an output that waits, with those that it stands for."""
        limit = self._config.max_running_requests_per_user
        return not limit or self.of(request.spec.user).num_running + len(request.children) <= limit

    def refusal(self, spec: RequestSpec) -> ChunkMeshError | None:
        """Return which limit but that of all requests keeps a new request from waiting, if any.

        Who has nothing waiting may always wait with one prompt, however long, and whatever others
        have waiting.
        """
        config, of_user = self._config, self.of(spec.user)
        limit = config.max_running_requests_per_user
        if limit and spec.num_outputs > limit:
            return InvalidRequest(
                f"n is {spec.num_outputs}, at most {limit} outputs of a user run at a time "
                "(--max-running-requests-per-user)",
                field="sampling_params.n",
            )
        limit = config.max_queued_requests_per_user
        if limit and of_user.num_waiting >= limit:
            return _overloaded(
                f"{of_user.num_waiting} requests of this user are waiting, the limit is {limit} "
                "(--max-queued-requests-per-user)"
            )
        if not of_user.num_waiting:
            return None
        for share, limit, whose, flag in (
            (of_user, config.max_queued_tokens_per_user, " of this user", "-per-user"),
            (self.all, config.max_queued_tokens, "", ""),
        ):
            wanted = share.waiting_tokens + len(spec.prompt_ids)
            if limit and wanted > limit:
                return _overloaded(
                    f"prompts of {share.waiting_tokens} tokens{whose} are waiting, with this one "
                    f"they would be {wanted}, the limit is {limit} (--max-queued-tokens{flag})"
                )
        return None

    def _wait_no_more(self, request: Request) -> None:
        """Let an output no longer wait, if it did."""
        if (key := (request.request_id, request.child)) in self._waiting:
            self._waiting.remove(key)
            self._add(request, Share(num_waiting=-1, waiting_tokens=-request.prompt_tokens))

    def _leave(self, request: Request) -> None:
        """Let an output no longer run, with those that it stands for, as far as they did."""
        ended = self._running & {(request.request_id, child) for child in request.children}
        self._running -= ended
        self._add(request, Share(num_running=-len(ended)))

    def _add(self, request: Request, change: Share) -> None:
        """Change what a user and what all have."""
        user = request.spec.user
        self.all += change
        share = self.of(user) + change
        if share == Share():
            self._shares.pop(user, None)
        else:
            self._shares[user] = share


def _overloaded(message: str) -> Overloaded:
    return Overloaded(message, retry_after_s=OVERLOADED_RETRY_S)
