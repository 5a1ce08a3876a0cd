"""Checkpoints of any width are exact where they are computed in float32."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import safetensors.torch
import torch

from chunkmesh.errors import ConfigError
from stage_worker.model_stage import load_stage
from stage_worker.stored_tensors import dequantise, scale_spec
from stage_worker.tensor_specs import TensorSpec
from tests.exactness import Expected, check_model
from tests.fp8_folders import quantise
from tests.pipeline_of_stages import load_pipeline
from tests.tiny_models import edit_config, make_tiny

SCALES = "model.layers.1.self_attn.q_proj.weight_scale_inv"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def fp8(tmp_path: pathlib.Path) -> pathlib.Path:
    """A Llama whose blocks of 48 are ragged in every matrix."""
    make_tiny(tmp_path / "source", "Llama")
    quantise(tmp_path / "source", tmp_path / "fp8", tmp_path / "plain", 48)
    return tmp_path / "fp8"


def _rewrite(folder: pathlib.Path, change: Callable[[Tensors], object]) -> None:
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load(file.read_bytes())
    change(tensors)
    safetensors.torch.save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_checkpoints(tmp_path: pathlib.Path, prompt: list[int], dtype: torch.dtype) -> None:
    """Weights are widened once, if float32 is asked for, and everything after is exact."""
    make_tiny(tmp_path, "Qwen2")
    _rewrite(tmp_path, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()}))
    edit_config(tmp_path, dtype=str(dtype).removeprefix("torch."))
    check_model(tmp_path, prompt, dtype="float32")


def test_ragged_blocks() -> None:
    """The last block of a row or a column may be smaller (O26 a)."""
    weight = torch.full((6, 8), 16.0).to(torch.float8_e4m3fn)
    values = dequantise(weight, torch.tensor([[0.5, 2.0], [4.0, 0.25]]), (4, 4))
    assert values.dtype == torch.float32
    assert values[3].tolist() == [8.0] * 4 + [32.0] * 4
    assert values[4].tolist() == [64.0] * 4 + [4.0] * 4
    assert float(values.sum()) == 1184


def test_shape_of_scales() -> None:
    """576 rows are four blocks and a half (O26 b)."""
    spec = TensorSpec(role="x", name="x.weight", shape=(576, 7168))
    scales = scale_spec(spec, torch.float8_e4m3fn, (128, 128))
    assert scales == TensorSpec(role="x", name="x.weight_scale_inv", shape=(5, 56))
    assert scale_spec(spec, torch.bfloat16, (128, 128)) is None


@pytest.mark.parametrize("family", ["Llama", "Qwen3Moe"])
def test_fp8_model(tmp_path: pathlib.Path, prompt: list[int], family: str) -> None:
    """Equal to transformers with the values that the eight bits stand for."""
    make_tiny(tmp_path / "source", family)
    quantise(tmp_path / "source", tmp_path / "fp8", tmp_path / "plain", 48)
    expected = Expected(tmp_path / "plain", prompt, 12)
    expected.check(load_pipeline(tmp_path / "fp8", (0, 4)))
    expected.check(load_pipeline(tmp_path / "fp8", (0, 2, 4)), chunk_tokens=23)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (3, 2), (2, 2, 1)])
def test_scales_of_another_shape(fp8: pathlib.Path, shape: tuple[int, ...]) -> None:
    """Other blocks would scale the wrong numbers (O26 b)."""
    _rewrite(fp8, lambda tensors: tensors.update({SCALES: torch.ones(shape)}))
    with pytest.raises(ConfigError, match=r"q_proj\.weight_scale_inv has shape"):
        load_stage(fp8, layers=range(4))


def test_scales_missing(fp8: pathlib.Path) -> None:
    """Eight bits alone say nothing."""
    _rewrite(fp8, lambda tensors: tensors.pop(SCALES))
    with pytest.raises(ConfigError, match=r"q_proj\.weight_scale_inv is missing"):
        load_stage(fp8, layers=range(4))


def test_scales_left_over(fp8: pathlib.Path) -> None:
    """Scales beside a weight of full width mean that one of the two is wrong."""
    name = SCALES.removesuffix("_scale_inv")
    _rewrite(fp8, lambda tensors: tensors.update({name: torch.ones(64, 64)}))
    with pytest.raises(ConfigError, match=r"q_proj\.weight_scale_inv .* not part"):
        load_stage(fp8, layers=range(4))


def test_eight_bits_that_nobody_describes(fp8: pathlib.Path) -> None:
    """Without quantization_config the size of a block is not known."""
    edit_config(fp8, quantization_config=None)
    with pytest.raises(ConfigError, match=r"q_proj\.weight .*float8_e4m3fn"):
        load_stage(fp8, layers=range(4))
