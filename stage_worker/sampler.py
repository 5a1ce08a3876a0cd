"""Chooses one token id from a row of logits.

A row's id depends on its logits, its settings, its seed and its output position, never on what
else is in the batch. Filters are applied in the order top_k, top_p, min_p, each on what the one
before left, as Hugging Face transformers does.

Shapes: V vocabulary, C candidates left, most likely first.
"""

from __future__ import annotations

import torch

from stage_worker.orders import SamplingRow
from stage_worker.philox import uniform


def sample(logits_V: torch.Tensor, row: SamplingRow) -> int:
    """Return the id chosen from one row of logits, which are only read."""
    logits_V = logits_V.float()
    if row.forbidden_ids:
        logits_V = logits_V.index_fill(0, torch.tensor(row.forbidden_ids), -torch.inf)
    if row.temperature == 0:
        return int(logits_V.argmax())
    scores_C, ids_C = _candidates(logits_V, row)
    # Subtracting first keeps the largest at 0, so that no temperature makes an infinity of it.
    probs_C = torch.softmax((scores_C - scores_C[0]) / row.temperature, dim=0)
    probs_C = _filter(probs_C, row)
    return int(ids_C[_draw(probs_C, uniform(row.seed, row.child, row.position))])


def _candidates(logits_V: torch.Tensor, row: SamplingRow) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and ids of the top_k most likely tokens, in order."""
    if 0 < row.top_k < len(logits_V):
        scores_C, ids_C = logits_V.topk(row.top_k)
        return scores_C, ids_C
    scores_C, ids_C = logits_V.sort(descending=True, stable=True)
    return scores_C, ids_C


def _filter(probs_C: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """Cut the tail by top_p and min_p; the first candidate always stays."""
    keep = len(probs_C)
    if row.top_p < 1:
        before_C = probs_C.cumsum(0) - probs_C
        keep = int((before_C < row.top_p).sum())
    if row.min_p > 0:
        keep = min(keep, int((probs_C >= row.min_p * probs_C[0]).sum()))
    return probs_C[: max(keep, 1)]


def _draw(probs_C: torch.Tensor, point: float) -> int:
    """Return the candidate in whose share of the total the point in [0, 1) falls."""
    total_C = probs_C.double().cumsum(0)
    index = int(torch.searchsorted(total_C, point * float(total_C[-1]), right=True))
    return min(index, int(torch.count_nonzero(probs_C)) - 1)
