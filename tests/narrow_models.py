"""Tiny models stored in a narrow type, and how far logits are from another computation's."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

import safetensors.torch
import torch
import transformers

from stage_worker.sampler import Sampler
from tests.pipeline_of_stages import PipelineOfStages
from tests.tiny_models import edit_config, make_tiny

NUM_EXPERTS = 8
"""Of each tiny model that has any."""


def make_narrow(path: pathlib.Path, family: str, dtype: str, **changes: Any) -> None:
    """Write a tiny model whose weights are rounded to dtype, as config.json declares."""
    make_tiny(path, family, **changes)
    store_as(path, dtype)
    edit_config(path, dtype=dtype)


def make_narrow_without_choice(path: pathlib.Path, family: str, dtype: str, **changes: Any) -> None:
    """Write one whose tokens use all experts.

    Between two nearly equal experts any narrow arithmetic may choose the other one, transformers'
    too; what comes of it has no bound that arithmetic could give.
    """
    if family in _WITH_EXPERTS:
        changes["num_experts_per_tok"] = NUM_EXPERTS
    if family in _WITH_GROUPS:
        changes["topk_group"] = 4
    make_narrow(path, family, dtype, **changes)


_WITH_GROUPS = frozenset({"DeepseekV2", "DeepseekV3"})
_WITH_EXPERTS = _WITH_GROUPS | {"Qwen3Moe"}


def store_as(path: pathlib.Path, dtype: str) -> None:
    """Round the weights of a folder; corrections of routers stay float32, as in real ones."""
    file = path / "model.safetensors"
    tensors = safetensors.torch.load(file.read_bytes())
    narrow = {
        name: tensor if name.endswith("correction_bias") else tensor.to(getattr(torch, dtype))
        for name, tensor in tensors.items()
    }
    safetensors.torch.save_file(narrow, file, {"format": "pt"})


def reference_logits(
    path: pathlib.Path, dtype: str, prompt: Sequence[int], answer: Sequence[int]
) -> torch.Tensor:
    """Return what transformers in dtype says of each token of answer, float32 [n, V]."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        said = model(torch.tensor([[*prompt, *answer[:-1]]]))
    logits: torch.Tensor = said.logits[0, len(prompt) - 1 :].float()
    return logits


def stage_logits(
    pipeline: PipelineOfStages, prompt: Sequence[int], answer: Sequence[int], **how: Any
) -> torch.Tensor:
    """Return what a pipeline says of each token of answer, float32 [n, V]."""
    rows: list[torch.Tensor] = []
    ids = iter(answer)

    def record(_sampler: Sampler, _row: object, logits_V: torch.Tensor, *_rest: object) -> int:
        rows.append(logits_V.clone())
        return next(ids)

    with mock.patch.object(Sampler, "_choose", record):
        pipeline.generate(prompt, len(answer), **how)
    logits_nV = torch.stack(rows)
    assert logits_nV.dtype == torch.float32
    return logits_nV


def deviation(logits_nV: torch.Tensor, exact_nV: torch.Tensor) -> float:
    """Return the root mean square of all differences, as a part of the range of exact logits."""
    span = exact_nV.max() - exact_nV.min()
    return float((logits_nV - exact_nV).square().mean().sqrt() / span)
