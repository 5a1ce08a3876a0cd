"""Eight-bit weights of a paged stage, with the kernels' definitions in place of the kernels."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import types
from typing import Any

import pytest
import torch

from stage_worker.kernels import reference, weight_blocks
from stage_worker.paged import backends
from stage_worker.paged.linear import BlockLinear, FullLinear
from stage_worker.paged.load import load_paged_stage
from stage_worker.weight_choice import DUMMY
from tests.exactness import recorded_logits
from tests.fp8_folders import quantise
from tests.narrow_models import deviation
from tests.pipeline_of_stages import PipelineOfStages, Work, decode_work, sampling_row
from tests.random_ids import make_prompt
from tests.tiny_models import edit_config, make_tiny

CPU = torch.device("cpu")
DEVIATION = 0.04
"""Of logits, because inputs are rounded to eight bits too."""
WHOLE_BLOCKS: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "initializer_range": 0.06,  # as trained ones: larger weights multiply rounding
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRows:
    """Stands in for block_gemm's."""

    values_TK: torch.Tensor
    scale_Tg: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledBlocks:
    """Stands in for block_gemm's."""

    values_NK: torch.Tensor
    scale_ng: torch.Tensor


def multiply(x: ScaledRows, weight: ScaledBlocks, out_TN: torch.Tensor) -> None:
    """Compute what DeepGEMM computes."""
    x_TK = reference.dequantise(x.values_TK, x.scale_Tg)
    num_rows = len(weight.values_NK)
    weight_NK = torch.nn.functional.pad(weight.values_NK.float(), (0, 0, 0, -num_rows % 128))
    weight_NK = weight_blocks.dequantise_blocks(weight_NK, weight.scale_ng)[:num_rows]
    out_TN.copy_(x_TK @ weight_NK.T)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products be computed by definition, as if DeepGEMM were there."""
    block_gemm = types.ModuleType("block_gemm")
    vars(block_gemm).update(ScaledRows=ScaledRows, ScaledBlocks=ScaledBlocks, multiply=multiply)
    monkeypatch.setitem(sys.modules, "stage_worker.kernels.block_gemm", block_gemm)
    monkeypatch.setitem(sys.modules, "stage_worker.kernels.quantise", reference)
    monkeypatch.setattr(backends, "_why_not_block_gemm", lambda _about: iter(()))


def logits(model_path: pathlib.Path) -> torch.Tensor:
    """Return the logits behind a prompt and of one decode step, in bfloat16."""
    prompt = make_prompt(61, seed=5)
    stage = load_paged_stage(model_path, layers=range(4), device=CPU, dtype="bfloat16")
    pipeline = PipelineOfStages([stage], num_pages=8, page_tokens=16)
    work = Work(
        row=0,
        start=0,
        token_ids=tuple(prompt),
        new_page_ids=(0, 1, 2, 3),
        sampling=sampling_row(),
    )
    with recorded_logits() as rows:
        pipeline.run(work)
        pipeline.run(decode_work(0, 61, 3))
    return torch.cat(rows)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_stored_weights_stay_in_eight_bits(family: str, tmp_path: pathlib.Path) -> None:
    """They are multiplied as they are stored, merged where they read the same input."""
    source, fp8, plain = (tmp_path / name for name in ("source", "fp8", "plain"))
    shape = {**WHOLE_BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2}
    make_tiny(source, family, **shape)
    quantise(source, fp8, plain, 128)
    found_nV = logits(fp8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "_why_not_block_gemm", lambda _about: iter(("no",)))
        exact_nV = logits(plain)
    assert deviation(found_nV, exact_nV) < DEVIATION


def test_dummy_weights_become_eight_bits(tmp_path: pathlib.Path) -> None:
    """A shape whose config.json says eight bits is measured in eight bits."""
    make_tiny(tmp_path, "Llama", **WHOLE_BLOCKS)
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    edit_config(tmp_path, quantization_config=settings)
    stage = load_paged_stage(
        tmp_path,
        layers=range(4),
        device=CPU,
        dtype="bfloat16",
        choice=DUMMY,
    )
    gated = stage._layers[0]._mlp
    assert BlockLinear is type(vars(gated)["_down"])


def test_weights_of_other_shapes_become_wide(tmp_path: pathlib.Path) -> None:
    """A matrix that is not of whole blocks is multiplied in full width, and the log says so."""
    source, fp8, plain = (tmp_path / name for name in ("source", "fp8", "plain"))
    make_tiny(source, "Llama", hidden_size=256, intermediate_size=160, head_dim=64)
    quantise(source, fp8, plain, 128)
    stage = load_paged_stage(fp8, layers=range(4), device=CPU, dtype="bfloat16")
    gated = stage._layers[0]._mlp
    assert FullLinear is type(vars(gated)["_down"])
