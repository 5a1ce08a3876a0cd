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

Users of one priority take turns and have limits of their own (fair_door.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from chunkmesh.errors import InvalidRequest
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.fair_queue import FairQueue
from scheduler.request import Request, RequestState

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


def too_large(spec: RequestSpec, config: EngineConfig, num_pages: int) -> InvalidRequest | None:
    """Return how far a request could outgrow a pool, if so; name what is too much."""
    prompt_tokens, num_outputs = len(spec.prompt_ids), spec.num_outputs
    longest = prompt_tokens + spec.max_new_tokens
    need, alone = (
        pages_needed(spec, config, num_tokens=longest, num_outputs=n) for n in (num_outputs, 1)
    )
    if need <= num_pages:
        return None
    if config.pages_for(prompt_tokens) > num_pages:
        field = "input"
    else:
        field = f"sampling_params.{'n' if alone <= num_pages else 'max_new_tokens'}"
    asked = named_new_tokens(spec.max_new_tokens, spec.asked_new_tokens)
    given = f"prompt of {prompt_tokens} tokens and {asked}"
    if num_outputs > 1:
        given = f"{num_outputs} outputs of a {given}"
    return InvalidRequest(
        f"{given} need {need} pages of {config.page_tokens} tokens, the pool has {num_pages}",
        field=field,
    )


class Admission:
    """The queue of outputs that have no row on a route, of all users in their fair order.

    A new request comes behind all others of its user; one that was preempted takes its old place
    again.
    """

    def __init__(self) -> None:
        """Begin with nobody waiting."""
        self._queue = FairQueue()
        """WAITING and QUEUED outputs."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return self._queue.in_order()

    def of(self, user: str) -> Sequence[Request]:
        """Return who waits of a user, in order; a view."""
        return self._queue.of_users().get(user, ())

    def add(self, request: Request) -> None:
        """Let an output wait behind all that are served before it."""
        self._queue.add(request)

    def first(self, num_requests: int) -> list[Request]:
        """Return the first outputs that could be admitted now."""
        queued = (each for each in self if each.state is RequestState.QUEUED)
        return list(itertools.islice(queued, num_requests))

    def remove(self, request: Request) -> None:
        """Take an output out, if it waits."""
        self._queue.remove(request)

    def take_next(
        self,
        has_place: Callable[[Request], bool],
        may_run: Callable[[Request], bool] = lambda _request: True,
    ) -> Request | None:
        """Take out who is next and has a place, if there is one; note whom it has passed.

        One whose match is pending is passed until that is known, and does not count it. A user
        is held back from the first one on that may not run.
        """
        passed: list[Request] = []
        for request in self._queue.in_order(may_run):
            if request.state is not RequestState.QUEUED:
                continue
            if has_place(request):
                for each in passed:
                    each.num_passed += 1
                self._queue.remove(request)
                return request
            passed.append(request)
            if request.num_passed >= MAX_PASSED or len(passed) == _LOOK_AHEAD:
                return None
        return None
