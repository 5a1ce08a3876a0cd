"""Latent attention: every variant of DeepSeek's families, and what its cache holds."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import safetensors.torch
import structlog.testing
import torch

from chunkmesh.errors import ConfigError
from stage_worker.latent_config import parse_latent
from stage_worker.model_config import parse_model_config
from stage_worker.model_stage import load_stage
from stage_worker.tensor_specs import layer_specs
from tests.exactness import Expected, check_model
from tests.fp8_folders import quantise
from tests.pipeline_of_stages import load_pipeline
from tests.tiny_models import edit_config, make_tiny

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 512,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("DeepseekV2", {"q_lora_rank": 40}),
    ("DeepseekV2", {"topk_method": "greedy", "n_group": None, "topk_group": None}),
    ("DeepseekV2", {"rope_parameters": YARN}),
    ("DeepseekV2", {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}),
    ("DeepseekV2", {"first_k_dense_replace": 4}),
    ("DeepseekV3", {"q_lora_rank": None}),
    ("DeepseekV3", {"rope_interleave": False}),
    ("DeepseekV3", {"norm_topk_prob": False, "routed_scaling_factor": 1.0}),
    ("DeepseekV3", {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}),
    ("DeepseekV3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("DeepseekV3", {"rms_norm_eps": 1e-2, "tie_word_embeddings": True}),
]


@pytest.mark.parametrize(("family", "fields"), VARIANTS)
def test_variants(
    tmp_path: pathlib.Path, prompt: list[int], family: str, fields: dict[str, Any]
) -> None:
    """Each setting alone, so that a wrong one is named by its test."""
    make_tiny(tmp_path, family, **fields)
    check_model(tmp_path, prompt)


def test_cache_holds_latents(tmp_path: pathlib.Path) -> None:
    """One vector a token and layer, whatever the number of heads."""
    make_tiny(tmp_path, "DeepseekV3")
    stage = load_stage(tmp_path, layers=range(1, 4))
    stage.allocate(num_pages=3, page_tokens=16)
    assert stage.description.kv_bytes_per_token == 3 * (48 + 16) * 4
    assert stage.page_layer_bytes() == 16 * (48 + 16) * 4


def test_fp8_deepseek(tmp_path: pathlib.Path, prompt: list[int]) -> None:
    """Eight-bit matrices are reordered and split after they are scaled."""
    make_tiny(tmp_path / "source", "DeepseekV3")
    quantise(tmp_path / "source", tmp_path / "fp8", tmp_path / "plain", 48)
    Expected(tmp_path / "plain", prompt, 12).check(load_pipeline(tmp_path / "fp8", (0, 1, 4)))


def test_further_layers_are_skipped_and_logged(tmp_path: pathlib.Path, prompt: list[int]) -> None:
    """Layers behind the last predict further tokens, which nobody asks for here."""
    make_tiny(tmp_path, "DeepseekV3")
    expected = Expected(tmp_path, prompt, 4)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load(file.read_bytes())
    tensors["model.layers.4.eh_proj.weight"] = torch.ones(64, 128)
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    with structlog.testing.capture_logs() as logs:
        expected.check(load_pipeline(tmp_path, (0, 2, 4)))
    assert [log["layers"] for log in logs if log["event"] == "layers skipped"] == [(4,)]


@pytest.mark.parametrize(
    ("family", "fields", "text"),
    [
        ("DeepseekV2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("DeepseekV2", {"topk_method": "noaux_tc"}, r"noaux_tc.*group_limited_greedy"),
        ("DeepseekV3", {"scoring_func": "softmax"}, r"softmax.*sigmoid"),
        ("DeepseekV3", {"moe_layer_freq": 2}, "moe_layer_freq=2"),
        ("DeepseekV3", {"n_group": 3}, "n_group=3"),
        ("DeepseekV3", {"topk_group": 5}, "topk_group=5"),
        ("DeepseekV3", {"topk_group": 1}, r"num_experts_per_tok=3.*2 experts"),
    ],
)
def test_unknown_routing_is_refused(
    tmp_path: pathlib.Path, family: str, fields: dict[str, Any], text: str
) -> None:
    """Another way to choose experts would give fluent nonsense."""
    make_tiny(tmp_path, family)
    edit_config(tmp_path, **fields)
    with pytest.raises(ConfigError, match=text):
        load_stage(tmp_path, layers=range(4))


def test_odd_width() -> None:
    """Pairs are turned."""
    with pytest.raises(ConfigError, match="qk_rope_head_dim=15"):
        parse_latent({"qk_rope_head_dim": 15}, present=True)


def test_published_config() -> None:
    """What DeepSeek-V3.1's config.json states comes out as its paper says: 576 numbers a token."""
    config = parse_model_config(
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            "attention_bias": False,
            "first_k_dense_replace": 3,
            "hidden_act": "silu",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "max_position_embeddings": 163840,
            "moe_intermediate_size": 2048,
            "moe_layer_freq": 1,
            "n_group": 8,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 128,
            "num_nextn_predict_layers": 1,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "rope_theta": 10000,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_group": 4,
            "topk_method": "noaux_tc",
            "v_head_dim": 128,
            "vocab_size": 129280,
        }
    )
    assert (config.num_planes, config.num_kv_heads, config.head_dim) == (1, 1, 576)
    assert config.experts is not None
    assert config.experts.layers == tuple(range(3, 61))
    assert config.fp8_block == (128, 128)
    assert config.rope.attention_factor == 1.0
    assert config.rope.score_factor == pytest.approx(1.8740, abs=1e-3)
    shapes = {spec.name: spec.shape for spec in layer_specs(config, 5)}
    assert shapes["model.layers.5.self_attn.kv_a_proj_with_mqa.weight"] == (576, 7168)
    assert len(shapes) == 9 + 2 + 3 * 257
