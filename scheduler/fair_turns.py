"""Gives outputs that wait their turns, so that users of one priority share in tokens. Pure.

Start-time fair queueing: time is counted in tokens. What a user asks for begins where its last
one ended, or now, if that is later; who begins first is served first, and now is where the last
one that was served began. So a flood queues up behind itself: a request of somebody else takes its
turn next to the flood's next one. Nobody starves, for only so many can begin before a given turn,
and a place is never left empty for a user who is not there. With one user turns ascend as requests
arrive. A turn is kept for good, so that an output that was preempted takes its old place.

Charged is what is asked for, prompt and output: how much of that a request uses is known too late.
Source: Goyal, Vin, Cheng, Start-time Fair Queuing, https://doi.org/10.1145/248157.248171, and in
tokens: Sheng et al., Fairness in Serving Large Language Models, https://arxiv.org/abs/2401.00588
"""

from __future__ import annotations

import dataclasses

from scheduler.events import RequestSpec

_FEW_ENDS = 64


@dataclasses.dataclass(slots=True, kw_only=True)
class _Clock:
    """Time of one priority, in tokens."""

    now: int = 0
    """Where the last one that was served began; never goes back."""
    ends: dict[str, int] = dataclasses.field(default_factory=dict)
    """Where what each user has asked for ends, of those who may be ahead of now."""
    most_ends: int = _FEW_ENDS
    """So many are kept before those are looked for that are not ahead of now any more."""

    def forget_passed(self) -> None:
        """Forget users whom time has passed, once there are many: they begin now like anybody."""
        if len(self.ends) < self.most_ends:
            return
        self.ends = {user: end for user, end in self.ends.items() if end > self.now}
        self.most_ends = max(_FEW_ENDS, 2 * len(self.ends))


class FairTurns:
    """One clock for each priority: who waits at one has nothing to do with another."""

    def __init__(self) -> None:
        """Begin with nobody having asked for anything."""
        self._clocks: dict[int, _Clock] = {}

    def take(self, spec: RequestSpec) -> int:
        """Return the turn of a new request; of one priority the lowest turn is served first."""
        clock = self._clocks.setdefault(spec.priority, _Clock())
        turn = max(clock.now, clock.ends.get(spec.user, 0))
        clock.ends[spec.user] = turn + cost_tokens(spec)
        clock.forget_passed()
        return turn

    def served(self, priority: int, turn: int) -> None:
        """Let time go on to a turn that was given."""
        clock = self._clocks.setdefault(priority, _Clock())
        clock.now = max(clock.now, turn)

    def rest(self) -> None:
        """Forget who had how much, once nobody waits: what was free has cost nobody anything."""
        for clock in self._clocks.values():
            if clock.ends:
                clock.now = max(clock.now, *clock.ends.values())
                clock.ends.clear()


def cost_tokens(spec: RequestSpec) -> int:
    """Return the tokens that a request asks for, >= 2."""
    return len(spec.prompt_ids) + spec.num_outputs * spec.max_new_tokens
