"""Tells operators how well the latencies of a route's stages are known: log lines."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from scheduler.stage_fit import StageFit

_log = structlog.get_logger(__name__)


def tell_fits(fits: Sequence[StageFit]) -> None:
    """Log the fits of a route that stands, by stage."""
    for stage, fit in enumerate(fits):
        facts = {"stage": stage, "layers": str(fit.layers), "source": fit.source}
        if fit.median_error is not None:
            facts["median_error"] = round(fit.median_error, 3)
        if fit.refused is None:
            _log.info("stage latency accepted", **facts)
        elif fit.source is None:
            _log.info("stage latency unknown", reason=fit.refused, **facts)
        else:
            _log.warning("stage latency refused", reason=fit.refused, **facts)
