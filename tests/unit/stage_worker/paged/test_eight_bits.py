"""Eight-bit weights of a paged stage, with the kernels' definitions in place of the kernels."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch

from stage_worker.kernels import reference, reference_experts
from stage_worker.paged import backends, block_experts
from stage_worker.paged.block_experts import BlockExperts
from stage_worker.paged.feed_forward import Gated
from stage_worker.paged.linear import BlockLinear, FullLinear
from stage_worker.paged.load import load_paged_stage
from stage_worker.weight_choice import DUMMY, WeightChoice
from tests import defined_block_gemm
from tests.exactness import recorded_logits
from tests.fp8_folders import WHOLE_BLOCKS, quantise, whole_blocks
from tests.narrow_models import deviation
from tests.pipeline_of_stages import PipelineOfStages, Work, decode_work, sampling_row
from tests.random_ids import make_prompt
from tests.tiny_models import FAMILIES, edit_config, make_tiny

CPU = torch.device("cpu")
DEVIATION = 0.04
"""Of logits, because inputs are rounded to eight bits too."""


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products be computed by definition, as if DeepGEMM were there."""
    monkeypatch.setitem(sys.modules, "stage_worker.kernels.block_gemm", defined_block_gemm)
    monkeypatch.setitem(sys.modules, "stage_worker.kernels.quantise", reference)
    monkeypatch.setitem(sys.modules, "stage_worker.kernels.expert_slots", reference_experts)
    monkeypatch.setattr(block_experts, "_FEW_ROWS", 32)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_stored_weights_stay_in_eight_bits(family: str, tmp_path: pathlib.Path) -> None:
    """They are multiplied as they are stored, merged where they read the same input."""
    source, fp8, plain = (tmp_path / name for name in ("source", "fp8", "plain"))
    make_tiny(source, family, **whole_blocks(family))
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


@pytest.mark.parametrize("family", ["Qwen3Moe", "DeepseekV3"])
def test_experts_stay_in_eight_bits(family: str, tmp_path: pathlib.Path) -> None:
    """Weights of experts are most of such a model: none of them may become wide unseen."""
    make_tiny(tmp_path, family, **whole_blocks(family))
    choice = WeightChoice(quantization="fp8")
    stage = load_paged_stage(tmp_path, layers=range(4), device=CPU, dtype="bfloat16", choice=choice)
    kinds = {type(layer._mlp) for layer in stage._layers}
    assert kinds == {BlockExperts, Gated}
    names = {each.operation: each.name for each in stage.description.backends}
    assert names["products of experts"] == "DeepGEMM, grouped"
