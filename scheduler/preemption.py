"""Who gives its pages to others when they run out. Pure.

Of the running outputs of the lowest priority the youngest leaves, whatever it does: its work so far
is the least, and those who came first are served first. It takes no further part in microbatches;
when what it has in flight has arrived it waits again, in its old place, and is resumed as prompt
and output. Nobody leaves for pages that come back by themselves: those of leavers and of ended
outputs in flight, and those that a store still reads. Pages that many share count once, and what
nobody holds is no reason to leave: idle cached pages go first (pages.py).

The oldest running output of the highest priority never leaves, and always finishes: when all others
have left, whatever it does not hold is free or comes back by itself, and the door has let in only
what fits the pool (admission.py). So there is always one that ends, and then another that is first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from scheduler.request import Request, RequestState


def choose_leavers(
    running: Iterable[Request], waiting: Collection[Request], *, num_pages: int
) -> list[Request]:
    """Return who has to leave so that each of those who wait for a page will get one, or leaves.

    running are all outputs with a row, waiting those of them that lack a page of num_pages.
    """
    stayers = [request for request in running if request.state is not RequestState.LEAVING]
    num_waiting = len(waiting)
    holds = Counter(page_id for request in stayers for page_id in request.held_page_ids)
    num_held = len(holds)
    leavers: list[Request] = []
    while num_waiting > num_pages - num_held and len(stayers) > 1:
        last = max(stayers, key=lambda request: request.rank)
        stayers.remove(last)
        leavers.append(last)
        num_waiting -= last in waiting
        holds.subtract(last.held_page_ids)
        num_held -= sum(not holds[page_id] for page_id in last.held_page_ids)
    return leavers
