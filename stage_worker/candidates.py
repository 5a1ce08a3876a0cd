"""Which ids may be drawn, and the draw.

Ids are ranked by their weight, most likely first, equal ones by the lower id; every filter keeps
the first few of what the one before left, in the order top_k, top_p, min_p, as Hugging Face
transformers does (which keeps all ids that tie for the last place of top_k; here exactly top_k
stay). The draw then walks the kept ids in ascending order, so that it sorts nothing where nothing
is filtered, and one random number means one id on every device.

Shapes: V vocabulary, R ranked ids, C candidates left, in ascending order.
"""

from __future__ import annotations

import math

import torch

from stage_worker.orders import SamplingRow

_LIKELY_IDS = 1024
"""Nearly always more than top_p keeps, and eight times cheaper to find than the whole order."""


def draw(weights_V: torch.Tensor, row: SamplingRow, point: float) -> int:
    """Return the id in whose share of the weights left by the filters the point in [0, 1) falls.

    weights_V is float32, is proportional to the probabilities and has a maximum of 1.
    """
    ids_C = _kept(weights_V, row)
    weights_C = weights_V if ids_C is None else weights_V[ids_C]
    total_C = weights_C.cumsum(0, dtype=torch.float64)
    total = float(total_C[-1])
    # Rounding must not move the point to the end, behind the last id with a weight.
    mark = min(point * total, math.nextafter(total, 0.0))
    index = int(torch.searchsorted(total_C, mark, right=True))
    return index if ids_C is None else int(ids_C[index])


def largest_ids(values_V: torch.Tensor, num_ids: int) -> torch.Tensor:
    """Return the num_ids >= 1 ids [C] of the largest values, ascending; of equal ones the lower."""
    least = values_V.topk(num_ids).values[-1]
    ids_C = (values_V >= least).nonzero().squeeze(1)
    surplus = len(ids_C) - num_ids
    if surplus > 0:
        last_equal_ids = (values_V[ids_C] == least).nonzero().squeeze(1)[-surplus:]
        keep_C = torch.ones_like(ids_C, dtype=torch.bool).index_fill_(
            0, last_equal_ids, value=False
        )
        ids_C = ids_C[keep_C]
    return ids_C


def _kept(weights_V: torch.Tensor, row: SamplingRow) -> torch.Tensor | None:
    """Return the candidates; None if nothing is filtered."""
    num_kept = row.top_k if 0 < row.top_k < len(weights_V) else len(weights_V)
    if row.top_p < 1:
        num_kept = _num_in_top_p(weights_V, num_kept, row.top_p)
    ids_C = largest_ids(weights_V, num_kept) if num_kept < len(weights_V) else None
    if row.min_p == 0:
        return ids_C
    if ids_C is None:
        return (weights_V >= row.min_p).nonzero().squeeze(1)
    return ids_C[weights_V[ids_C] >= row.min_p]


def _num_in_top_p(weights_V: torch.Tensor, num_ids: int, top_p: float) -> int:
    """Return how many of the first num_ids ids together reach top_p of their weight, >= 1."""
    if num_ids < len(weights_V):
        weights_R = weights_V.topk(num_ids).values
        wanted = top_p * float(weights_R.sum(dtype=torch.float64))
    else:
        wanted = top_p * float(weights_V.sum(dtype=torch.float64))
        weights_R = weights_V.topk(min(_LIKELY_IDS, num_ids)).values
        if float(weights_R.sum(dtype=torch.float64)) < wanted:
            weights_R = weights_V.sort(descending=True).values
    before_R = weights_R.cumsum(0, dtype=torch.float64) - weights_R
    return max(int((before_R < wanted).sum()), 1)
