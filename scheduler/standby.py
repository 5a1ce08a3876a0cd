"""What a scheduler says to users and workers while it does not lead its mesh."""

from __future__ import annotations

from chunkmesh.errors import InvalidRequest, Standby, Unavailable
from scheduler.candidate import Candidate
from scheduler.leadership import AnyLeadership

RETRY_S = 0.5
"""When to ask again: a take-over is a matter of seconds."""


def check_leads(leadership: AnyLeadership) -> None:
    """Refuse a user's call unless this scheduler leads.

    Raises:
        Standby: it does not; names the one that does.
    """
    if reason := leadership.standby_reason():
        active = leadership.active()
        raise Standby(reason, retry_after_s=RETRY_S, active=active.users if active else "")


def check_follows(candidate: Candidate, own_epoch: int, seen_epoch: int) -> None:
    """Refuse a worker unless this scheduler leads, above all that the worker has followed.

    Of a worker that has followed another leader the candidate hears; own_epoch is the highest that
    this scheduler has made or would make its next one above.

    Raises:
        Standby: this scheduler does not lead; names the one that does.
        Unavailable: it does not know yet whether it still leads.
        InvalidRequest: seen_epoch is of a term that no leader can have had.
    """
    leadership = candidate.leadership
    if reason := leadership.standby_reason():
        active = leadership.active()
        raise Standby(reason, retry_after_s=RETRY_S, active=active.workers if active else "")
    if seen_epoch <= own_epoch:
        return
    term = seen_epoch >> 32
    if term > (limit := leadership.max_heard_term()):
        raise InvalidRequest(
            f"seen_epoch {seen_epoch} is of term {term}, this scheduler believes at most {limit};"
            " a worker that is started again has seen none"
        )
    candidate.hear_term(term)
    if leadership.term is None or leadership.term <= term:
        raise Unavailable(f"the worker has followed a leader of term {term}", retry_after_s=RETRY_S)


def active_users(leadership: AnyLeadership) -> str:
    """Return the users' address of the scheduler that leads instead; empty if there is none."""
    active = leadership.active()
    return active.users if active else ""
