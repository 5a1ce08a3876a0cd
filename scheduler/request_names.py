"""Names of requests inside the scheduler, where the ids that clients choose are unique. Pure.

An id belongs to the user whose request has it: two users may choose the same one, and none can tell
by a refusal that somebody else has.
"""

from __future__ import annotations

from scheduler.validation import check_request_id

_BETWEEN = "\0"
"""Is in no id, whatever it may be in a user's name."""


def request_name(request_id: str, user: str) -> str:
    """Return what no request of another id or user is called; the id itself where user is empty.

    Raises:
        InvalidRequest: the id is too long or not printable.
    """
    check_request_id(request_id)
    return f"{request_id}{_BETWEEN}{user}" if user else request_id


def id_and_user(name: str) -> tuple[str, str]:
    """Return whose and which request is called so."""
    request_id, _, user = name.partition(_BETWEEN)
    return request_id, user
