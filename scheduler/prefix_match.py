"""What HiCache is asked for a waiting output, and what its answer means. Pure.

Never for the last known token: it is always computed.
"""

from __future__ import annotations

from scheduler.actions import Action, MatchPrefix
from scheduler.events import Matched
from scheduler.request import Request, RequestState
from scheduler.route import release_lease


def ask(request: Request, page_tokens: int) -> list[Action]:
    """Ask for an output's prefix; it is QUEUED at once if there is nothing to ask for."""
    num_pages = (request.known_tokens - 1) // page_tokens
    if not num_pages or request.needs_whole_prompt:
        request.move(RequestState.QUEUED)
        return []
    digests = request.leading_digests(num_pages, page_tokens)
    return [MatchPrefix(request_id=request.request_id, child=request.child, digests=digests)]


def answered(request: Request, matched: Matched, page_tokens: int) -> list[Action]:
    """Note how much of a WAITING output HiCache has; it is QUEUED then."""
    most = (request.known_tokens - 1) // page_tokens
    request.num_match_pages = max(0, min(matched.num_pages, most))
    request.lease_id = matched.lease_id
    request.move(RequestState.QUEUED)
    return [] if request.num_match_pages else release_lease(request)
