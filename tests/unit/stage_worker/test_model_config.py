"""config.json is read, never guessed."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest

from chunkmesh.errors import ConfigError
from stage_worker.model_config import parse_model_config, read_model_config
from tests.pipeline_of_stages import load_pipeline
from tests.reference import Reference
from tests.tiny_models import edit_config, make_tiny_llama

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def test_defaults() -> None:
    """Fields that older files leave out have transformers' defaults."""
    config = parse_model_config(RAW)
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert (config.rms_norm_eps, config.rope.theta) == (1e-6, 10000.0)
    assert (config.tie_word_embeddings, config.eos_token_ids) == (False, ())


@pytest.mark.parametrize(
    ("fields", "theta"),
    [
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5),
        ({"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}, 1e5),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}}, 1e5),
    ],
)
def test_rope_theta_spellings(fields: dict[str, Any], theta: float) -> None:
    """Version 5 of transformers writes rope_parameters, older files rope_theta."""
    assert theta == parse_model_config(RAW | fields).rope.theta


@pytest.mark.parametrize("eos", [2, [2, 5]])
def test_eos_spellings(eos: int | list[int]) -> None:
    """One end token or several (O10)."""
    expected = tuple(eos) if isinstance(eos, list) else (eos,)
    assert expected == parse_model_config(RAW | {"eos_token_id": eos}).eos_token_ids


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"architectures": ["OtherForCausalLM"]}, r"OtherForCausalLM.*LlamaForCausalLM"),
        ({"architectures": None}, "known are"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weight_block_size"),
        ({"rope_scaling": {"rope_type": "nonsense", "factor": 2}}, "nonsense"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "factor=None"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"head_dim": 15}, "head_dim=15"),
        ({"hidden_size": "64"}, "hidden_size='64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": None}, "vocab_size=None"),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1"),
        ({"eos_token_id": "2"}, "eos_token_id='2'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(fields: dict[str, Any], text: str) -> None:
    """A setting that is ignored in silence would give fluent nonsense (O25)."""
    with pytest.raises(ConfigError, match=text):
        parse_model_config(RAW | fields)


NUMBER = [True, False, "1", -1, math.nan, math.inf, -math.inf, 10**400, [], {}]
COUNT = [*NUMBER, 1.0, 2**31]
FLAG = ["false", "true", 1, 0, 1.0, [], {}]
LIST = [True, "a", 1, {}, [True], [1.5], [[]]]
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}
MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
DEEPSEEK: dict[str, Any] = {
    **MOE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "n_group": 2,
    "topk_group": 1,
}
WINDOW: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
QWEN: dict[str, Any] = {**WINDOW, "sliding_window": 64}


@pytest.mark.parametrize(
    ("base", "field", "values"),
    [
        *(({}, field, COUNT) for field in RAW if field != "architectures"),
        *(({}, field, COUNT) for field in ("num_key_value_heads", "head_dim")),
        ({}, "rms_norm_eps", NUMBER),
        ({}, "rope_theta", NUMBER),
        *(({}, field, FLAG) for field in ("tie_word_embeddings", "attention_bias", "mlp_bias")),
        ({}, "hidden_act", [True, 1, [], {}]),
        ({}, "dtype", [True, 1, ["float32"], {}]),
        ({}, "eos_token_id", [True, 1.0, -1, "2", [True], [[]], {}]),
        ({}, "rope_scaling", [True, False, 0, 1, "", "yarn", [], [{}]]),
        ({}, "quantization_config", [True, False, 0, "", "fp8", []]),
        ({}, "partial_rotary_factor", [True, "1", math.nan, 0.5, []]),
        (WINDOW, "sliding_window", COUNT),
        (WINDOW, "use_sliding_window", FLAG),
        (QWEN, "max_window_layers", [True, 1.5, "1", -1, math.inf]),
        (QWEN, "layer_types", LIST),
        (MOE, "mlp_only_layers", LIST),
        (MOE, "norm_topk_prob", FLAG),
        (MOE, "decoder_sparse_step", COUNT),
        *((DEEPSEEK, field, COUNT) for field in ("q_lora_rank", "kv_lora_rank", "n_group")),
        *((DEEPSEEK, field, COUNT) for field in ("topk_group", "moe_layer_freq", "num_experts")),
        *((DEEPSEEK, field, FLAG) for field in ("rope_interleave", "norm_topk_prob")),
        (DEEPSEEK, "routed_scaling_factor", NUMBER),
        (DEEPSEEK, "scoring_func", [True, 1, [], {}]),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    base: dict[str, Any], field: str, values: list[Any]
) -> None:
    """A bare TypeError names no field, and a text that counts as true changes the model."""
    for value in values:
        with pytest.raises(ConfigError, match=field):
            parse_model_config({**RAW, **base, field: value})


@pytest.mark.parametrize(
    ("base", "field", "values"),
    [
        (YARN, "factor", NUMBER),
        *((YARN, field, NUMBER) for field in ("mscale", "mscale_all_dim", "attention_factor")),
        *((YARN, field, NUMBER) for field in ("beta_fast", "beta_slow", "rope_theta")),
        (YARN, "truncate", FLAG),
        (YARN, "original_max_position_embeddings", COUNT),
        (YARN, "rope_type", [True, False, 0, "", "YARN", []]),
        (YARN, "partial_rotary_factor", [True, "1", math.nan, 0.5, []]),
        *((LLAMA3, field, NUMBER) for field in ("factor", "low_freq_factor", "high_freq_factor")),
    ],
)
def test_a_wrong_rope_setting_is_refused_by_name(
    base: dict[str, Any], field: str, values: list[Any]
) -> None:
    """As above, inside rope_scaling."""
    for value in values:
        with pytest.raises(ConfigError, match=field.replace("rope_type", "rope type")):
            parse_model_config({**RAW, "rope_scaling": {**base, field: value}})


def test_a_model_has_no_more_layers_than_pages_can_name() -> None:
    """Larger numbers would take all memory before anybody looks at a weight."""
    with pytest.raises(ConfigError, match="num_hidden_layers=4097 must be at most 4096"):
        parse_model_config(RAW | {"num_hidden_layers": 4097})


def test_unreadable_files(tmp_path: pathlib.Path) -> None:
    """The path stands in the error."""
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match="object"):
        read_model_config(tmp_path)


def test_digest_tells_configs_apart() -> None:
    """Replicas with another epsilon would compute something else."""
    config = parse_model_config(RAW)
    other = parse_model_config(RAW | {"rms_norm_eps": 1e-5})
    assert config.digest() == parse_model_config(dict(reversed(RAW.items()))).digest()
    assert config.digest() != other.digest()


def test_head_dim_and_theta_are_honoured(tmp_path: pathlib.Path, prompt: list[int]) -> None:
    """head_dim need not be hidden_size / heads (O25)."""
    make_tiny_llama(tmp_path, head_dim=32, rope_theta=500000.0, rms_norm_eps=1e-2)
    expected = Reference(tmp_path).generate(prompt, 12)
    assert expected == load_pipeline(tmp_path, (0, 2, 4)).generate(prompt, 12)


def test_eps_changes_the_answer(tiny_llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The file's epsilon is used, not one of ours."""
    for file in tiny_llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_config(tmp_path, rms_norm_eps=10.0)
    prompt = list(range(40))
    expected = Reference(tmp_path).generate(prompt, 12)
    assert expected == load_pipeline(tmp_path, (0, 4)).generate(prompt, 12)
    assert expected != load_pipeline(tiny_llama, (0, 4)).generate(prompt, 12)
