"""Who may wait, who is next, and how many pages it needs. Pure.

Admission reserves the pages of what is known and of one token more, for each output that begins:
pages for what comes later are taken when they are needed, and if there is none the youngest output
makes room (preemption.py). The last output token is never fed back and needs no position.

So that newcomers do not at once push others out, one page must be left for each running output.
When nothing runs, the pool is free or becomes free by itself, and the door has let in only what
fits it.

Who lacks a place may be passed by those behind it that need less, so that a short prompt does not
wait for a long one that waits for pages. But only so often: then nobody is admitted before it, and
its pages come back as others end.

Users of one priority take turns (fair_turns.py) and have limits of their own (user_shares.py). A
full queue makes room for who has less in it: the user with most in it loses its last request.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkmesh.errors import ChunkMeshError, InvalidRequest, Overloaded
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.fair_queue import FairQueue
from scheduler.fair_turns import FairTurns
from scheduler.request import Request, RequestState
from scheduler.user_shares import OVERLOADED_RETRY_S, UserShares

MAX_PASSED = 16
"""So many may be admitted before one that waits for more than they need."""
_LOOK_AHEAD = 8
"""So many that lack a place are looked at."""


def pages_needed(
    spec: RequestSpec, config: EngineConfig, *, num_tokens: int, num_outputs: int
) -> int:
    """Return the pages of num_tokens positions of each output, as far as any is reached.

    Outputs of one prompt share its full pages.
    """
    prompt_tokens = len(spec.prompt_ids)
    num_pages = config.pages_for(min(num_tokens, prompt_tokens + spec.max_new_tokens - 1))
    num_shared = prompt_tokens // config.page_tokens
    return num_shared + num_outputs * (num_pages - num_shared)


def new_tokens_that_fit(
    prompt_tokens: int, *, num_outputs: int, num_pages: int, page_tokens: int
) -> int:
    """Return the largest max_new_tokens for which pages_needed is at most num_pages.

    It is 0 or negative where the pool cannot hold the prompt for all outputs.
    """
    num_shared = prompt_tokens // page_tokens
    own_pages = (num_pages - num_shared) // num_outputs
    return (num_shared + own_pages) * page_tokens - prompt_tokens + 1


def named_new_tokens(max_new_tokens: int, asked_new_tokens: int | None) -> str:
    """Name max_new_tokens as the client did, and what the context leaves of it if it is less."""
    if asked_new_tokens is None:
        return f"max_new_tokens {max_new_tokens}"
    return f"max_new_tokens {asked_new_tokens} (of which the context leaves {max_new_tokens})"


def pages_at_start(request: Request, config: EngineConfig) -> int:
    """Return the pages that an output needs to be admitted, with all that it stands for."""
    return pages_needed(
        request.spec,
        config,
        num_tokens=request.known_tokens + 1,
        num_outputs=len(request.children),
    )


class Admission:
    """The queue of outputs that have no row: of the highest priority the lowest turn goes first.

    A new request comes behind all others of its user; one that was preempted takes its old place
    again.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Begin with nobody waiting."""
        self._config = config
        self._queue = FairQueue()
        """WAITING and QUEUED outputs."""
        self._turns = FairTurns()
        self._shares = UserShares(config)

    def __len__(self) -> int:
        return len(self._queue)

    def refusal(self, spec: RequestSpec, *, num_pages: int) -> ChunkMeshError | None:
        """Return why a request must not wait for a pool of num_pages, if so."""
        limit = self._config.max_running_requests
        if spec.num_outputs > limit:
            return InvalidRequest(
                f"n is {spec.num_outputs}, at most {limit} outputs run at a time",
                field="sampling_params.n",
            )
        if (error := self._too_large(spec, num_pages)) is not None:
            return error
        if (limited := self._shares.refusal(spec)) is not None:
            return limited
        limit = self._config.max_queued_requests
        if len(self._queue) >= limit and self._has_most(spec.user) is None:
            return Overloaded(
                f"{len(self._queue)} requests are waiting, the limit is {limit}",
                retry_after_s=OVERLOADED_RETRY_S,
            )
        return None

    def makes_room(self, spec: RequestSpec) -> tuple[str, Overloaded] | None:
        """Return which request must go for one that was not refused, and why, if any must."""
        limit = self._config.max_queued_requests
        if len(self._queue) < limit or (last := self._has_most(spec.user)) is None:
            return None
        num_waiting = self._shares.of(last.spec.user).num_waiting
        reason = f"{num_waiting} of the {limit} requests that may wait were this user's"
        return last.request_id, Overloaded(
            f"{reason}; its last one made room for another user's",
            retry_after_s=OVERLOADED_RETRY_S,
        )

    def take_turn(self, spec: RequestSpec) -> int:
        """Return the turn of a request that is let in."""
        return self._turns.take(spec)

    def add(self, request: Request) -> None:
        """Let an output wait behind all that are served before it."""
        self._queue.add(request)
        self._shares.waits(request)

    def remove(self, request: Request) -> None:
        """Forget an output that has ended: take it out, if it waits."""
        has_waited = self._queue.remove(request)
        self._shares.gone(request, has_waited=has_waited)
        self._rest()

    def take_next(self, has_place: Callable[[Request], bool]) -> Request | None:
        """Take out who is next and has a place, if there is one; note whom it has passed.

        One whose match is pending is passed until that is known, and does not count it.
        """
        passed: list[Request] = []
        for request in self._queue.in_order(self._shares.may_run):
            if request.state is not RequestState.QUEUED:
                continue
            if has_place(request):
                for each in passed:
                    each.num_passed += 1
                return self._take(request)
            passed.append(request)
            if request.num_passed >= MAX_PASSED or len(passed) == _LOOK_AHEAD:
                return None
        return None

    def _take(self, request: Request) -> Request:
        """Take out who is admitted."""
        self._queue.remove(request)
        self._shares.admitted(request)
        self._turns.served(request.spec.priority, request.turn)
        self._rest()
        return request

    def _rest(self) -> None:
        """Let turns begin anew once nobody waits."""
        if not len(self._queue):
            self._turns.rest()

    def _has_most(self, user: str) -> Request | None:
        """Return the last one that never ran of who has most waiting, if that is more than user.

        By two at least, so that both do not take turns in pushing each other out.
        """
        waiting = self._queue.of_users()
        most = max(waiting, key=lambda each: len(waiting[each]), default=user)
        if len(waiting.get(most, ())) < len(waiting.get(user, ())) + 2:
            return None
        new = (each for each in reversed(waiting[most]) if each.is_new)
        return next(new, None)

    def _too_large(self, spec: RequestSpec, num_pages: int) -> InvalidRequest | None:
        """Return how far a request could outgrow the pool, if so; name what is too much."""
        prompt_tokens, num_outputs = len(spec.prompt_ids), spec.num_outputs
        longest = prompt_tokens + spec.max_new_tokens
        need, alone = (
            pages_needed(spec, self._config, num_tokens=longest, num_outputs=n)
            for n in (num_outputs, 1)
        )
        if need <= num_pages:
            return None
        if self._config.pages_for(prompt_tokens) > num_pages:
            field = "input"
        else:
            field = f"sampling_params.{'n' if alone <= num_pages else 'max_new_tokens'}"
        asked = named_new_tokens(spec.max_new_tokens, spec.asked_new_tokens)
        given = f"prompt of {prompt_tokens} tokens and {asked}"
        if num_outputs > 1:
            given = f"{num_outputs} outputs of a {given}"
        return InvalidRequest(
            f"{given} need {need} pages of {self._config.page_tokens} tokens, "
            f"the pool has {num_pages}",
            field=field,
        )
