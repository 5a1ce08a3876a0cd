"""Splits layers over stages so that the slowest stage is as fast as can be. Pure and exact."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from scheduler.latency_model import FloatArray, IntArray

_ROUNDING = 1e-9
"""Costs that differ by less than this ratio of the whole count as equal."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """What a pipeline's work costs, in any unit."""

    layers: Sequence[float]
    """Of each layer, > 0; at least one."""
    first: float = 0.0
    """Beside its layers, of the first stage: the embedding. >= 0."""
    last: float = 0.0
    """Beside its layers, of the last stage: the head. >= 0."""


def balanced_partition(costs: LayerCosts, num_stages: int) -> tuple[LayerRange, ...]:
    """Return the ranges with the cheapest slowest stage.

    Of all that have it, those whose costs are most even (least squares), and then those with more
    layers at the later stages: equal layers are split as chunkmesh.layers.partition does.

    Raises:
        ConfigError: a stage would hold no layer, or there is no stage.
    """
    num_layers = len(costs.layers)
    if not 1 <= num_stages <= num_layers:
        raise ConfigError(
            f"{num_layers} layers cannot be split over {num_stages} stages: each needs one layer"
        )
    tables = [_range_costs(costs, stage, num_stages) for stage in range(num_stages)]
    slowest = _least_slowest(tables)
    limit = slowest + _ROUNDING * float(np.sum(costs.layers))
    borders = _most_even(tables, limit)
    return tuple(LayerRange(first=a, last=b) for a, b in itertools.pairwise(borders))


def _range_costs(costs: LayerCosts, stage: int, num_stages: int) -> FloatArray:
    """Return the cost of layers [i, j) on a stage at [i, j]; inf where there is no such range."""
    sums = np.concatenate([[0.0], np.cumsum(costs.layers)])
    table: FloatArray = sums[None, :] - sums[:, None]
    table = table + (costs.first if stage == 0 else 0.0)
    table += costs.last if stage == num_stages - 1 else 0.0
    table[np.tril_indices(len(sums))] = np.inf
    return table


def _least_slowest(tables: Sequence[FloatArray]) -> float:
    """Return the least cost of the slowest stage that any split has."""
    behind = tables[-1][:, -1]
    for table in reversed(tables[:-1]):
        behind = np.maximum(table, behind[None, :]).min(axis=1)
    return float(behind[0])


def _most_even(tables: Sequence[FloatArray], limit: float) -> list[int]:
    """Return the borders of the split with the least squares under a limit of each cost."""
    squares = [np.where(table <= limit, table, np.inf) ** 2 for table in tables]
    behind = squares[-1][:, -1]
    choices: list[IntArray] = []
    for table in reversed(squares[:-1]):
        totals = table + behind[None, :]
        behind = totals.min(axis=1)
        is_least = totals <= behind[:, None] * (1 + _ROUNDING)
        choices.append(is_least.argmax(axis=1))  # the fewest layers of those as good
    borders = [0]
    for choice in reversed(choices):
        borders.append(int(choice[borders[-1]]))
    return [*borders, tables[0].shape[0] - 1]
