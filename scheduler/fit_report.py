"""Tells operators how well the stages' latencies are known: log lines and metrics."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from prometheus_client import Gauge

from scheduler.stage_fit import StageFit

_log = structlog.get_logger(__name__)
_ERROR = Gauge(
    "chunkmesh_stage_fit_median_error_ratio",
    "Relative error of a stage's latency at points that the fit had not seen, median.",
    ["stage"],
)
_ACCEPTED = Gauge(
    "chunkmesh_stage_fit_accepted",
    "Whether chunks may be planned with a stage's latency, 1 or 0.",
    ["stage"],
)


def tell_fits(fits: Sequence[StageFit]) -> None:
    """Log and count the fits of a route that stands, by stage."""
    _ERROR.clear()
    _ACCEPTED.clear()
    for stage, fit in enumerate(fits):
        _ACCEPTED.labels(stage).set(fit.refused is None)
        if fit.median_error is not None:
            _ERROR.labels(stage).set(fit.median_error)
        facts = {"stage": stage, "layers": str(fit.layers), "source": fit.source}
        if fit.median_error is not None:
            facts["median_error"] = round(fit.median_error, 3)
        if fit.refused is None:
            _log.info("stage latency accepted", **facts)
        elif fit.source is None:
            _log.info("stage latency unknown", reason=fit.refused, **facts)
        else:
            _log.warning("stage latency refused", reason=fit.refused, **facts)
