"""What has thrown an output back to where a new request begins. Pure.

Pages may be too few, or a route be lost. An output that runs whenever routes are lost may be why:
whoever decides that needs to know how often nothing came of it in between.
"""

from __future__ import annotations

import dataclasses
from typing import Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setbacks:
    """How often one output began again."""

    num_preemptions: int = 0
    """How often it gave its pages to others and waited again."""
    num_recoveries: int = 0
    """How often its route was lost while it ran there, and it waited again."""
    num_in_vain: int = 0
    """How many of the recoveries that it may be the cause of came last, one after the other,
    without any news between them."""
    news_before: int = 0
    """News that had been told at the last of these."""

    @property
    def has_any(self) -> bool:
        """Whether it ever began again."""
        return self.num_preemptions > 0 or self.num_recoveries > 0

    def with_preemption(self) -> Self:
        """Count one more preemption."""
        return dataclasses.replace(self, num_preemptions=self.num_preemptions + 1)

    def with_recovery(self, *, is_at_fault: bool, news: int) -> Self:
        """Count one more recovery; anew in vain if there was news since the last one.

        is_at_fault says that the output may be why its route was lost; if not, nothing was in vain.
        news counts what its client was told so far.
        """
        counted = dataclasses.replace(self, num_recoveries=self.num_recoveries + 1)
        if not is_at_fault:
            return counted
        num_in_vain = 1 if news > self.news_before else self.num_in_vain + 1
        return dataclasses.replace(counted, num_in_vain=num_in_vain, news_before=news)
