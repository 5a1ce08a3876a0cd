"""Rotary scalings as transformers computes them."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from chunkmesh.errors import ConfigError
from stage_worker.rope import inverse_frequencies
from stage_worker.rope_config import parse_rope
from tests.exactness import check_model
from tests.tiny_models import edit_config, make_tiny_llama

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
MSCALES = {"mscale": 1.0, "mscale_all_dim": 0.7}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "llama3", **LLAMA3, "factor": 8.0},
    {"rope_type": "yarn", **YARN},
    {"rope_type": "yarn", **YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", **YARN, **MSCALES},
    {"rope_type": "yarn", **YARN, "attention_factor": 0.8},
]


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(32, (3.211446e-3, 4.295568e-4, 8.570255e-6)), (8, (3.211446e-3, 5.248462e-4, 3.428102e-5))],
)
def test_llama3_frequencies(factor: float, expected: tuple[float, ...]) -> None:
    """Known figures for head_dim 64 and theta 500,000 (O25)."""
    scaling = {"rope_type": "llama3", **LLAMA3, "factor": factor}
    config = parse_rope(
        {"rope_theta": 500000.0, "rope_scaling": scaling, "max_position_embeddings": 131072}
    )
    frequencies = inverse_frequencies(config, 64)
    assert expected == pytest.approx([float(frequencies[i]) for i in (14, 16, 20)], rel=1e-6)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any]) -> None:
    """Every kind, every setting."""
    theirs = transformers.LlamaConfig(
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": 500000.0, **scaling},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs)
    config = parse_rope(
        {"rope_theta": 500000.0, "rope_scaling": scaling, "max_position_embeddings": 4096}
    )
    torch.testing.assert_close(inverse_frequencies(config, 64), expected, rtol=1e-6, atol=0)
    assert config.attention_factor == pytest.approx(factor)


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaled_models(
    tmp_path: pathlib.Path, prompt: list[int], scaling: dict[str, Any], key: str
) -> None:
    """The old fields, with both spellings of the kind (O25)."""
    make_tiny_llama(tmp_path, head_dim=64)
    fields = {key: scaling["rope_type"]} | {k: v for k, v in scaling.items() if k != "rope_type"}
    edit_config(tmp_path, rope_parameters=None, rope_theta=500000.0, rope_scaling=fields)
    check_model(tmp_path, prompt, 40)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rope_parameters(
    tmp_path: pathlib.Path, prompt: list[int], scaling: dict[str, Any]
) -> None:
    """The field of version 5 of transformers."""
    make_tiny_llama(tmp_path, rope_parameters={"rope_theta": 500000.0, **scaling})
    check_model(tmp_path, prompt)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_length_dependent_kinds_are_refused(kind: str, field: str) -> None:
    """The reason stands in the error: cached keys would be wrong for longer requests."""
    with pytest.raises(ConfigError, match=rf"{kind}.*cached keys would differ"):
        parse_rope({field: {"rope_type": kind, "factor": 2.0}, "max_position_embeddings": 64})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rope_type": "nonsense"}, r"nonsense.*linear, llama3, yarn"),
        ({"rope_type": "linear"}, "factor=None"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor=1"),
        ({"full_attention": {"rope_theta": 1e4}}, "for all layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigError, match=text):
        parse_rope({"rope_parameters": fields, "max_position_embeddings": 64})
