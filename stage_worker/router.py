"""Chooses the experts of each token and how much each counts.

Shapes: T rows, D hidden size, E experts, G groups of experts, k experts of one token.
Source: https://arxiv.org/abs/2101.03961, https://arxiv.org/abs/2412.19437 (groups, correction)
"""

from __future__ import annotations

import torch

from stage_worker.experts_config import ExpertsConfig

Routes = tuple[torch.Tensor, torch.Tensor]
"""Expert ids, int64 [T, k], and their weights [T, k]."""


class Router:
    """Holds the matrix that scores experts; scores are float32 in every model."""

    def __init__(
        self, scores_DE: torch.Tensor, correction_E: torch.Tensor | None, config: ExpertsConfig
    ) -> None:
        self._scores_DE = scores_DE
        self._correction_E = correction_E
        self._config = config

    def __call__(self, x_TD: torch.Tensor) -> Routes:
        """Return each row's experts."""
        return choose_experts(x_TD.float() @ self._scores_DE, self._correction_E, self._config)


def choose_experts(
    logits_TE: torch.Tensor, correction_E: torch.Tensor | None, config: ExpertsConfig
) -> Routes:
    """Return the best experts; they are weighed by score, which the correction does not change."""
    softmax = config.scoring == "softmax"
    score_TE = torch.softmax(logits_TE, dim=-1) if softmax else logits_TE.sigmoid()
    merit_TE = score_TE if correction_E is None else score_TE + correction_E
    if config.num_groups > 1:
        merit_TE = _in_best_groups(merit_TE, config)
    ids_Tk = merit_TE.topk(config.experts_per_token, dim=-1).indices
    weights_Tk = score_TE.gather(1, ids_Tk)
    if config.renormalised:
        weights_Tk = weights_Tk / (weights_Tk.sum(dim=-1, keepdim=True) + 1e-20)
    return ids_Tk, weights_Tk * config.scaling_factor


def _in_best_groups(merit_TE: torch.Tensor, config: ExpertsConfig) -> torch.Tensor:
    """Return merits, -inf outside each row's best groups."""
    group_size = config.num_experts // config.num_groups
    merit_TGe = merit_TE.view(len(merit_TE), config.num_groups, group_size)
    group_TG = merit_TGe.topk(config.group_judges, dim=-1).values.sum(dim=-1)
    best = group_TG.topk(config.groups_per_token, dim=-1).indices
    left_out_TG = torch.ones_like(group_TG, dtype=torch.bool).scatter_(1, best, value=False)
    return merit_TGe.masked_fill(left_out_TG[:, :, None], -torch.inf).view_as(merit_TE)
