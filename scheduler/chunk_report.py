"""Tells operators how prompts are cut on a route, and why if not as asked: log lines."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from scheduler.engine_config import ChunkStrategyName
from scheduler.stage_fit import StageFit

_log = structlog.get_logger(__name__)


class ChunkReport:
    """Remembers what was told: what somebody wanted so need not be told for every route."""

    def __init__(self, asked: ChunkStrategyName, *, is_default: bool) -> None:
        """Compare with the strategy asked for; is_default if nobody has named one."""
        self._asked = asked
        self._is_default = is_default
        self._told_reason = ""

    def tell(self, strategy: ChunkStrategyName, reason: str, fits: Sequence[StageFit]) -> None:
        """Log the strategy of a route that stands; reason is empty if it is the one asked for.

        Without any measurement, as with workers of --profile off, the default cannot be had: that
        is a choice and told once. All else is degraded.
        """
        if not reason:
            _log.info("chunk strategy", strategy=strategy)
        elif not (self._is_default and _is_unmeasured(fits)):
            _log.warning(
                "chunk strategy replaced", asked=self._asked, strategy=strategy, reason=reason
            )
        elif reason != self._told_reason:
            _log.info(
                "chunk strategy replaced", asked=self._asked, strategy=strategy, reason=reason
            )
        self._told_reason = reason


def _is_unmeasured(fits: Sequence[StageFit]) -> bool:
    """Say whether latencies are missing because nobody measured, and for no other reason."""
    return all(fit.source is None for fit in fits if fit.refused is not None)
