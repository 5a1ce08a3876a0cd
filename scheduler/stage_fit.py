"""What a stage's latency is taken to be, and whether chunks may be planned with it. Pure.

Fitted to what the stage's worker measured, or read from a file, which goes first. One stage whose
latency is not known well enough is a pipeline whose latency is not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from scheduler.latency_file import LatencyFile
from scheduler.latency_fit import LatencyPoint, fit_latency, relative_errors
from scheduler.latency_model import TERMS, PipelineLatency, StageLatency, rows_fixed_ms
from scheduler.size_ratios import SizeRatios

Source = Literal["profile", "file"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageFit:
    """The latency of one stage."""

    layers: LayerRange
    latency: StageLatency | None
    """None if nothing could be fitted."""
    median_error: float | None
    """Relative, at points that the fit had not seen; None without any."""
    p90_error: float | None
    refused: str | None
    """Why chunks must not be planned with it, in words; None if they may."""
    source: Source | None
    """None if nobody measured and no file was given."""


def profile_fit(layers: LayerRange, points: Sequence[LatencyPoint]) -> StageFit:
    """Fit what a worker measured; takes up to a second."""
    if not points:
        return StageFit(
            layers=layers,
            latency=None,
            median_error=None,
            p90_error=None,
            refused="its worker measured nothing",
            source=None,
        )
    fit = fit_latency(points)
    return StageFit(
        layers=layers,
        latency=fit.latency,
        median_error=_finite(fit.median_error),
        p90_error=_finite(fit.p90_error),
        refused=fit.refused,
        source="profile",
    )


def file_fit(file: LatencyFile, layers: LayerRange, points: Sequence[LatencyPoint]) -> StageFit:
    """Take what a file says; points only tell how far that is from what the worker measured."""
    latency = latency_of(file, layers)
    errors = relative_errors(latency, points) if points else None
    return StageFit(
        layers=layers,
        latency=latency,
        median_error=None if errors is None else float(np.quantile(errors, 0.5)),
        p90_error=None if errors is None else float(np.quantile(errors, 0.9)),
        refused=None,
        source="file",
    )


def latency_of(file: LatencyFile, layers: LayerRange) -> StageLatency:
    """Return what a file says of some layers, which it covers.

    Another split than the file's is made of its stages' layers, each taking its part of the stage's
    time. What its stages take beside their layers is taken from the one that takes most.
    """
    shares = [
        (stage.latency, overlap / stage.layers.num_layers)
        for stage in file.stages
        if (overlap := _overlap(stage.layers, layers)) > 0
    ]
    terms = {
        name: sum(getattr(latency, name) * share for latency, share in shares)
        for name in ("floor_ms", *TERMS)
    }
    return StageLatency(
        **terms,
        edge_ms=max(latency.edge_ms for latency, _ in shares),
        rows_fixed_ms=rows_fixed_ms(shares),
        size_ratios=SizeRatios.mean([(latency.size_ratios, share) for latency, share in shares]),
    )


def check_covers(file: LatencyFile, num_layers: int, *, name: str) -> None:
    """Refuse a file of other layers than a model has; name says which, in errors.

    Raises:
        ConfigError: names both.
    """
    first, last = file.stages[0].first_layer, file.stages[-1].last_layer
    if (first, last) != (0, num_layers - 1):
        raise ConfigError(
            f"{name} has the latency of layers {first}-{last}, the model has 0-{num_layers - 1}"
        )


def pipeline_latency(fits: Sequence[StageFit]) -> PipelineLatency | None:
    """Return the latency of a route by its stages' fits; None if one of them is refused."""
    stages = tuple(fit.latency for fit in fits if fit.latency is not None and fit.refused is None)
    return PipelineLatency(stages) if stages and len(stages) == len(fits) else None


def _overlap(one: LayerRange, other: LayerRange) -> int:
    return min(one.last, other.last) - max(one.first, other.first)


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
