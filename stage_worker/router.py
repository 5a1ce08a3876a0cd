"""Chooses the experts of each token and how much each counts.

Shapes: T rows, D hidden size, E experts, k experts of one token.
Source: https://arxiv.org/abs/2101.03961
"""

from __future__ import annotations

import torch

from stage_worker.experts_config import ExpertsConfig

Routes = tuple[torch.Tensor, torch.Tensor]
"""Expert ids, int64 [T, k], and their weights [T, k]."""


class Router:
    """Holds the matrix that scores experts."""

    def __init__(self, scores_DE: torch.Tensor, config: ExpertsConfig) -> None:
        self._scores_DE = scores_DE
        self._config = config

    def __call__(self, x_TD: torch.Tensor) -> Routes:
        """Return each row's experts."""
        return choose_experts(x_TD @ self._scores_DE, self._config)


def choose_experts(logits_TE: torch.Tensor, config: ExpertsConfig) -> Routes:
    """Return the most likely experts; they are weighed after softmax, renormalised or not."""
    weights_Tk, ids_Tk = torch.softmax(logits_TE, dim=-1).topk(config.experts_per_token, dim=-1)
    if config.renormalised:
        weights_Tk = weights_Tk / weights_Tk.sum(dim=-1, keepdim=True)
    return ids_Tk, weights_Tk
