"""Which ids may be drawn, and the draw.

Ids are ranked by their scores, most likely first, equal ones by the lower id. Every filter keeps
the first few of what the one before left, in the order top_k, top_p, min_p, as Hugging Face
transformers does (there all ids that tie for the last place of top_k stay; here exactly top_k do).
The draw then walks the kept ids in ascending order: nothing is ranked where nothing is filtered,
and one random number means one id on every device.

Shapes: V vocabulary, R ranked ids, C candidates left, in ascending order.
"""

from __future__ import annotations

import math

import torch

from stage_worker.orders import SamplingRow

_LIKELY_IDS = (64, 1024)
"""How many are ranked in search of top_p before all are: nearly always the first are enough."""


def draw(scores_V: torch.Tensor, largest: float, row: SamplingRow, point: float) -> int:
    """Return the id in whose share of what the filters leave the point in [0, 1) falls.

    scores_V is float32 and only read, largest is its finite maximum; row.temperature > 0.
    """
    ids_C, weights_C = candidates(scores_V, largest, row)
    total_C = weights_C.cumsum(0, dtype=torch.float64)
    total = float(total_C[-1])
    # Rounding must not move the point to the end, behind the last id with a weight.
    mark = min(point * total, math.nextafter(total, 0.0))
    index = int(torch.searchsorted(total_C, mark, right=True))
    return index if ids_C is None else int(ids_C[index])


def candidates(
    scores_V: torch.Tensor, largest: float, row: SamplingRow
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the ids [C] that the filters keep, None for all, and their weights.

    Weights are probabilities but for a common factor; the largest is 1.
    """
    if 0 < row.top_k < len(scores_V):
        ids_R = ranked(scores_V, row.top_k)
        weights_R = _weights(scores_V[ids_R], largest, row.temperature)
        return _filtered(ids_R, weights_R, row, row.top_p * _sum(weights_R))
    weights_V = _weights(scores_V, largest, row.temperature)
    if row.top_p < 1:
        wanted = row.top_p * _sum(weights_V)
        ids_R = _likely(scores_V, weights_V, wanted)
        return _filtered(ids_R, weights_V[ids_R], row, wanted)
    if row.min_p > 0:
        ids_C = (weights_V >= row.min_p).nonzero().squeeze(1)
        return ids_C, weights_V[ids_C]
    return None, weights_V


def ranked(values_V: torch.Tensor, num_ids: int) -> torch.Tensor:
    """Return the ids [R] of the num_ids >= 1 largest values, largest first, then lower id first."""
    # One more than wanted shows whether several ids tie for the last place.
    values_R, ids_R = values_V.topk(min(num_ids + 1, len(values_V)))
    if len(ids_R) > num_ids and values_R[-1] == values_R[-2]:
        ids_C = (values_V >= values_R[-1]).nonzero().squeeze(1)
    else:
        ids_C = ids_R[:num_ids].sort().values
    order_R = values_V[ids_C].sort(descending=True, stable=True).indices[:num_ids]
    return ids_C[order_R]


def _likely(scores_V: torch.Tensor, weights_V: torch.Tensor, wanted: float) -> torch.Tensor:
    """Return the first ids [R] of the ranking, enough to reach the wanted weight."""
    for num_ids in _LIKELY_IDS:
        if num_ids < len(scores_V):
            ids_R = ranked(scores_V, num_ids)
            if _sum(weights_V[ids_R]) >= wanted:
                return ids_R
    return ranked(scores_V, len(scores_V))


def _weights(scores: torch.Tensor, largest: float, temperature: float) -> torch.Tensor:
    # Subtracting first keeps the largest at 0: no temperature makes an infinity of it.
    return (scores - largest).div_(temperature).exp_()


def _filtered(
    ids_R: torch.Tensor, weights_R: torch.Tensor, row: SamplingRow, wanted: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and weights, by id, of the first ids that reach the wanted weight, and min_p."""
    num_kept = len(ids_R)
    if row.top_p < 1:
        before_R = weights_R.cumsum(0, dtype=torch.float64) - weights_R
        num_kept = max(int((before_R < wanted).sum()), 1)
    if row.min_p > 0:
        num_kept = min(num_kept, int((weights_R >= row.min_p).sum()))
    ids_C, order_C = ids_R[:num_kept].sort()
    return ids_C, weights_R[order_C]


def _sum(weights: torch.Tensor) -> float:
    return float(weights.sum(dtype=torch.float64))
