"""What HiCache is asked for a waiting output. Pure.

Never for the last known token: it is always computed.
"""

from __future__ import annotations

from scheduler.actions import Action, MatchPrefix
from scheduler.request import Request, RequestState


def ask(request: Request, page_tokens: int) -> list[Action]:
    """Ask for an output's prefix; it is QUEUED at once if there is nothing to ask for."""
    num_pages = (request.known_tokens - 1) // page_tokens
    if not num_pages or request.needs_whole_prompt:
        request.move(RequestState.QUEUED)
        return []
    digests = request.leading_digests(num_pages, page_tokens)
    return [MatchPrefix(request_id=request.request_id, child=request.child, digests=digests)]
