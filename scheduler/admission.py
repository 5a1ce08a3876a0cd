"""Who may wait, and who is next. Pure.

Pages for the whole prompt and the whole output are reserved at admission: a request that runs can
always go on, so half-done ones cannot block each other. The last output token is never fed back
and needs no position.
"""

from __future__ import annotations

from chunkmesh.errors import ChunkMeshError, InvalidRequest, Overloaded
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.request import Request, RequestState

OVERLOADED_RETRY_S = 1.0


def pages_needed(spec: RequestSpec, config: EngineConfig) -> int:
    """Return the pages of every position that a request can reach."""
    return config.pages_for(len(spec.prompt_ids) + spec.max_new_tokens - 1)


class Admission:
    """The queue of requests that have no row: first come, first served."""

    def __init__(self, config: EngineConfig) -> None:
        """Begin with nobody waiting."""
        self._config = config
        self._queue: dict[Request, None] = {}
        """WAITING and QUEUED requests in the order of arrival, at most max_queued_requests."""

    def __len__(self) -> int:
        return len(self._queue)

    def refusal(self, spec: RequestSpec, *, num_pages: int) -> ChunkMeshError | None:
        """Return why a request must not wait for a pool of num_pages, if so."""
        need = pages_needed(spec, self._config)
        if need > num_pages:
            page_tokens = self._config.page_tokens
            prompt_fits = self._config.pages_for(len(spec.prompt_ids)) <= num_pages
            return InvalidRequest(
                f"prompt of {len(spec.prompt_ids)} tokens and max_new_tokens {spec.max_new_tokens} "
                f"need {need} pages of {page_tokens} tokens, the pool has {num_pages}",
                field="sampling_params.max_new_tokens" if prompt_fits else "input",
            )
        limit = self._config.max_queued_requests
        if len(self._queue) >= limit:
            return Overloaded(
                f"{len(self._queue)} requests are waiting, the limit is {limit}",
                retry_after_s=OVERLOADED_RETRY_S,
            )
        return None

    def add(self, request: Request) -> None:
        """Let a request wait behind all others."""
        self._queue[request] = None

    def remove(self, request: Request) -> None:
        """Take a request out, if it waits."""
        self._queue.pop(request, None)

    def head(self) -> Request | None:
        """Return who is next; one whose match is pending is passed until it is known."""
        return next((r for r in self._queue if r.state is RequestState.QUEUED), None)
