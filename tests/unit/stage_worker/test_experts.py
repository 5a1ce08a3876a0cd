"""Mixtures of experts: which layers, which experts, how much each counts."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

from chunkmesh.errors import ConfigError
from stage_worker.experts_config import ExpertsConfig, parse_experts
from stage_worker.router import choose_experts
from tests.exactness import check_model
from tests.tiny_models import make_tiny

QWEN3: dict[str, Any] = {
    "num_hidden_layers": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}


def _qwen3(**changes: Any) -> ExpertsConfig:
    config = parse_experts(QWEN3 | changes, "qwen3")
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("renormalised", "expected"), [(False, (0.6439, 0.2369)), (True, (0.7311, 0.2689))]
)
def test_softmax_comes_first(renormalised: bool, expected: tuple[float, ...]) -> None:
    """Without renormalising, weights are probabilities too, not logits (O26 c)."""
    config = _qwen3(norm_topk_prob=renormalised)
    ids, weights = choose_experts(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), None, config)
    assert ids.tolist() == [[0, 1]]
    assert expected == pytest.approx(weights[0].tolist(), abs=5e-5)


@pytest.mark.parametrize("num_experts", [8, 256])
def test_equal_scores_choose_the_same_experts(num_experts: int) -> None:
    """A tie is decided in one way, whatever else is in the batch."""
    config = _qwen3(num_experts=num_experts, num_experts_per_tok=3)
    logits_TE = torch.randint(0, 3, (40, num_experts), generator=torch.Generator().manual_seed(1))
    together, _ = choose_experts(logits_TE.float(), None, config)
    alone = [choose_experts(row_E[None].float(), None, config)[0] for row_E in logits_TE]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({"decoder_sparse_step": 2}, (1, 3, 5)),
        ({"mlp_only_layers": [0, 5]}, (1, 2, 3, 4)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, (5,)),
    ],
)
def test_layers_with_experts(fields: dict[str, Any], layers: tuple[int, ...]) -> None:
    """The others are dense, with tensors of other names and shapes."""
    assert layers == _qwen3(**fields).layers


def test_more_experts_than_there_are() -> None:
    """Both figures stand in the error."""
    with pytest.raises(ConfigError, match=r"num_experts_per_tok=5.*4 experts"):
        _qwen3(num_experts_per_tok=5)


@pytest.mark.parametrize("norm_topk_prob", [False, True])
@pytest.mark.parametrize("fields", [{"mlp_only_layers": []}, {"decoder_sparse_step": 2}])
def test_qwen3_moe(
    tmp_path: pathlib.Path, prompt: list[int], norm_topk_prob: bool, fields: dict[str, Any]
) -> None:
    """Either flag equals transformers (O26 c)."""
    make_tiny(tmp_path, "Qwen3Moe", norm_topk_prob=norm_topk_prob, **fields)
    check_model(tmp_path, prompt)
