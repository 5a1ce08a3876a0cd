"""Who leads a mesh, as one scheduler sees it: events in, actions out. Pure.

A lease in Redis says who should lead; it ends by itself. That no two schedulers command the same
workers comes from the term alone: each leader has a higher one than all before it, and workers
follow nobody back to a lower one. So a leader that cannot renew its lease leads on, and to be wrong
about the lease costs a take-over, never a wrong token.
"""

from __future__ import annotations

import dataclasses

TTL_S = 3.0
"""How long a lease lives without renewal: with the rest of a take-over less than 5 s."""
LOOK_S = 0.3
"""Between two looks of a standby, and two renewals of the leader."""
LET_GO_S = 5.0
"""How long a leader that cannot renew keeps workers of whom no route stands or forms."""
FIRST_TERM = 1
MAX_TERM = 2**31 - 1
"""Epochs are (term << 32) | n and have 64 bits; what is above is no term."""
MAX_JUMP = 1 << 20
"""How far workers can raise a leader's term, all together, above the one that it began with: more
than there are ever take-overs, and little of what there is, for a worker may lie."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds the lease, as it says of itself."""

    name: str
    """New at every start of a process."""
    term: int
    """Under which it leads."""
    users: str = ""
    """Address of its users' port, HOST:PORT."""
    workers: str = ""
    """Address of its internal port."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""

    has_route: bool
    """Whether a route stands or forms."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSeen:
    """Redis answered a look, a renewal or a try to get the lease."""

    asked_s: float
    """When it was asked, on this scheduler's clock."""
    holder: Holder | None
    """None if nobody holds the lease."""
    left_s: float = 0.0
    """How much longer it lives without renewal."""
    was_released: bool = False
    """Whether its last holder gave it back, so that nobody has to wait for its end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TermTaken:
    """Redis gave out a term that nobody else has, as far as it remembers."""

    term: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed:
    """Redis did not do what the last action asked for; maybe it did, and the answer was lost."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TermHeard:
    """A worker has followed a leader of this term, in an epoch that this scheduler did not make."""

    term: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The scheduler ends, and commands nobody any more."""


Event = Tick | LeaseSeen | TermTaken | StoreFailed | TermHeard | Leave


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LookAtLease:
    """Ask who holds the lease."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TakeTerm:
    """Raise the counter of terms, above this one at least."""

    above: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeizeLease:
    """Get the lease if nobody else holds it; it tells the term."""

    term: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease:
    """Let the lease live on."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLease:
    """Give the lease back."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Command workers under this term."""

    term: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """Command nobody any more: end all requests, give up all workers."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LetWorkersGo:
    """Give up all workers, so that they look for another leader; those that find none return."""

    reason: str


Exchange = LookAtLease | TakeTerm | SeizeLease | RenewLease | ReleaseLease
"""What Redis is asked; one at a time, each answered by one event."""
Action = Exchange | Lead | StepDown | LetWorkersGo


class Leadership:
    """Owner of what one scheduler knows of the lease and of terms."""

    def __init__(self, name: str) -> None:
        """Stand by under a name that no other scheduler has, nor an earlier start of this one."""
        self.term: int | None = None
        """Under which this scheduler leads; None while it stands by."""
        self.holder: Holder | None = None
        """Who held the lease when Redis was last asked; may be this scheduler."""
        self.fault = ""
        """Why Redis did not answer the last time; empty if it did."""
        self._name = name
        self._foreign_term = FIRST_TERM - 1
        """Highest term of another leader that was heard of."""
        self._elected_term = FIRST_TERM
        """That of the last election that this scheduler won."""
        self._is_asking = False
        self._next_s = 0.0
        self._honour_until_s = 0.0
        """A lease that was seen is honoured to its end, even if Redis has lost it: its holder will
        set it again."""
        self._sure_until_s = 0.0
        """Until when nobody else can hold the lease of this leader."""
        self._routeless_s: float | None = None
        """Since when a leader that cannot renew has had no route."""
        self._has_left = False

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take an event and say what is to be done, in order; now_s only ever grows."""
        match event:
            case Tick():
                return [*self._let_go(event, now_s), *self._ask(now_s)]
            case LeaseSeen():
                return self._seen(event, now_s)
            case TermTaken():
                return self._taken(event.term)
            case StoreFailed():
                return self._failed(event.reason, now_s)
            case TermHeard():
                return self._heard(event.term, now_s)
            case Leave():
                return self._leave()

    def standby_reason(self) -> str:
        """Say why this scheduler does not lead, in words; empty if it does."""
        if self.term is not None:
            return ""
        if self._has_left:
            return "the scheduler is shutting down"
        if self.fault:
            return f"standby; {self.fault}"
        active = self.active()
        return f"standby; active is {active.users}" if active else "standby; none is active yet"

    def active(self) -> Holder | None:
        """Return who leads instead of this scheduler, as far as Redis has told."""
        is_mine = self.holder is None or self.holder.name == self._name
        return None if is_mine or self.term is not None else self.holder

    def max_heard_term(self) -> int:
        """Return the highest term that a worker may speak of."""
        return min(self._elected_term + MAX_JUMP, MAX_TERM - 1)

    def _ask(self, now_s: float) -> list[Action]:
        if self._is_asking or self._has_left or now_s < self._next_s:
            return []
        self._is_asking = True
        return [LookAtLease() if self.term is None else RenewLease()]

    def _seen(self, seen: LeaseSeen, now_s: float) -> list[Action]:
        had_fault, self.fault = bool(self.fault), ""
        self._is_asking = False
        self._next_s = now_s + LOOK_S
        self.holder = holder = seen.holder
        if holder is not None and holder.name != self._name:
            self._foreign_term = max(self._foreign_term, holder.term)
        if self._has_left:
            return []
        if self.term is not None:
            return self._seen_by_leader(seen, self.term)
        if holder is None:
            if had_fault:
                self._honour_until_s = now_s + TTL_S
            if not seen.was_released and now_s < self._honour_until_s:
                return []
            return self._take_term()
        if holder.name == self._name:
            return self._won(seen, holder.term, now_s)
        self._honour_until_s = now_s + seen.left_s
        return []

    def _seen_by_leader(self, seen: LeaseSeen, term: int) -> list[Action]:
        if seen.holder is None:
            self._is_asking = True
            return [SeizeLease(term=term)]
        if seen.holder.name != self._name:
            return self._step_down(f"{seen.holder.users} has the lease, term {seen.holder.term}")
        self._sure_until_s = seen.asked_s + seen.left_s
        if seen.holder.term > term:
            self.term = seen.holder.term
            return [Lead(term=self.term)]
        return self._take_term() if self._foreign_term >= term else []

    def _won(self, seen: LeaseSeen, term: int, now_s: float) -> list[Action]:
        """Begin to lead, unless too much has happened since Redis was asked."""
        if term <= self._foreign_term:
            return self._take_term()
        if now_s >= seen.asked_s + seen.left_s:
            self._next_s = now_s
            return []
        self._sure_until_s = seen.asked_s + seen.left_s
        self.term = self._elected_term = term
        return [Lead(term=term)]

    def _take_term(self) -> list[Action]:
        self._is_asking = True
        return [TakeTerm(above=self._foreign_term)]

    def _taken(self, term: int) -> list[Action]:
        return [] if self._has_left else [SeizeLease(term=term)]

    def _failed(self, reason: str, now_s: float) -> list[Action]:
        self._is_asking = False
        self._next_s = now_s + LOOK_S
        self.fault = reason
        if self.term is not None and self._foreign_term >= self.term:
            return self._step_down(f"workers have followed term {self._foreign_term}")
        return []

    def _heard(self, term: int, now_s: float) -> list[Action]:
        self._foreign_term = max(self._foreign_term, term)
        if self.term is None or term < self.term:
            return []
        self._next_s = now_s
        return self._ask(now_s)

    def _let_go(self, tick: Tick, now_s: float) -> list[Action]:
        """Look whether workers wait here in vain while another one may lead."""
        if self.term is None or tick.has_route or now_s < self._sure_until_s:
            self._routeless_s = None
            return []
        if self._routeless_s is None:
            self._routeless_s = now_s
        if now_s < self._routeless_s + LET_GO_S:
            return []
        self._routeless_s = now_s
        return [LetWorkersGo(reason="the lease cannot be renewed, another scheduler may lead")]

    def _step_down(self, reason: str) -> list[Action]:
        self.term = None
        return [StepDown(reason=reason)]

    def _leave(self) -> list[Action]:
        """Give the lease back, also one that was asked for when this scheduler did not lead yet."""
        self._has_left = True
        self._is_asking = True
        self.term = None
        return [ReleaseLease()]


class LoneLeadership:
    """Leads from the start: there is no other scheduler, but there may have been an earlier one."""

    def __init__(self) -> None:
        """Begin with the first term."""
        self.term: int | None = None
        self._has_left = False

    def handle(self, event: Event, _now_s: float) -> list[Action]:
        """Take an event and say what is to be done."""
        match event:
            case Tick() if self.term is None and not self._has_left:
                return self._lead(FIRST_TERM)
            case TermHeard(term=term) if self.term is not None and term >= self.term:
                return self._lead(term + 1)
            case Leave():
                self._has_left = True
                self.term = None
        return []

    def standby_reason(self) -> str:
        """Say why this scheduler does not lead, in words; empty if it does."""
        return "" if self.term is not None else "the scheduler is shutting down"

    def active(self) -> Holder | None:
        """Return who leads instead: nobody."""
        return None

    def max_heard_term(self) -> int:
        """Return the highest term that a worker may speak of."""
        return FIRST_TERM + MAX_JUMP

    def _lead(self, term: int) -> list[Action]:
        self.term = term
        return [Lead(term=term)]


AnyLeadership = Leadership | LoneLeadership
