"""How the layers would be split if the stages were to take equally long. Pure.

By what the stages took for the same prompts, so the split is computed and not measured: it needs
new workers.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from chunkmesh.layers import LayerRange
from scheduler.planning.balanced_partition import LayerCosts, balanced_partition

_LEAST_GAIN = 0.02
"""A split that makes the slowest stage faster by less is not worth a restart."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAdvice:
    """Another split, and what it should bring."""

    ranges: tuple[LayerRange, ...]
    slowest_ms: float
    """Compute of the slowest stage for a prompt, as measured."""
    expected_ms: float
    """What the slowest stage would take; < slowest_ms."""


def advise(
    ranges: Sequence[LayerRange],
    runs_ms: Sequence[Sequence[float]],
    edges_ms: Sequence[float],
) -> PartitionAdvice | None:
    """Return a better split of the layers, or None if there is none worth its trouble.

    Args:
        ranges: the layers of each stage, by stage.
        runs_ms: compute of each stage for one prompt, for each run; at least one.
        edges_ms: the part of it that is not the layers', by stage: embedding, head and what every
            microbatch takes beside; zeros if nothing is known.
    """
    stage_ms = [statistics.median(run[stage] for run in runs_ms) for stage in range(len(ranges))]
    edges = [min(edge, 0.9 * whole) for edge, whole in zip(edges_ms, stage_ms, strict=True)]
    least_edge = min(edges)
    costs = LayerCosts(
        layers=[
            (whole - edge) / held.num_layers
            for whole, edge, held in zip(stage_ms, edges, ranges, strict=True)
            for _ in range(held.num_layers)
        ],
        first=edges[0] - least_edge,
        last=edges[-1] - least_edge,
    )
    better = balanced_partition(costs, len(ranges))
    slowest = max(_stage_costs(costs, ranges)) + least_edge
    expected = max(_stage_costs(costs, better)) + least_edge
    if expected > (1 - _LEAST_GAIN) * slowest:
        return None
    return PartitionAdvice(ranges=better, slowest_ms=slowest, expected_ms=expected)


def _stage_costs(costs: LayerCosts, ranges: Sequence[LayerRange]) -> list[float]:
    sums = [sum(costs.layers[each.first : each.last]) for each in ranges]
    sums[0] += costs.first
    sums[-1] += costs.last
    return sums
