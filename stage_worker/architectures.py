"""The model families that can be served, each described by what sets it apart. Pure.

A family is a description, not a copy: everything computed is computed once, in a file of its own,
and this table says which of it a family uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from chunkmesh.errors import ConfigError
from stage_worker.experts_config import ExpertsKind

WindowRule = Literal["never", "stated", "switched", "late_layers"]
"""Which layers look back a limited way: none; all, if sliding_window is stated; all, if
use_sliding_window allows it too; or then only those from max_window_layers on."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family."""

    name: str
    """As architectures in config.json has it."""
    qkv_bias: bool = False
    """Queries, keys and values have biases."""
    qk_norm: bool = False
    """Each query and key head is normalised before it is turned."""
    window: WindowRule = "never"
    latent: bool = False
    """Keys and values come from one latent vector."""
    experts: ExpertsKind | None = None
    """How config.json describes its mixture of experts; None if it has none."""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What fields mean that are absent from config.json, where it is not the same for all."""


_ALL = (
    Architecture(name="LlamaForCausalLM"),
    Architecture(
        name="MistralForCausalLM",
        window="stated",
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
    ),
    Architecture(name="Qwen2ForCausalLM", qkv_bias=True, window="late_layers"),
    Architecture(
        name="Qwen3ForCausalLM", qk_norm=True, window="late_layers", defaults={"head_dim": 128}
    ),
    Architecture(name="Qwen3MoeForCausalLM", qk_norm=True, window="switched", experts="qwen3"),
    Architecture(
        name="DeepseekV2ForCausalLM",
        latent=True,
        experts="deepseek2",
        defaults={"q_lora_rank": 1536, "n_shared_experts": 2},
    ),
    Architecture(
        name="DeepseekV3ForCausalLM",
        latent=True,
        experts="deepseek3",
        defaults={"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
    ),
)
ARCHITECTURES: Mapping[str, Architecture] = {entry.name: entry for entry in _ALL}


def find_architecture(names: object) -> Architecture:
    """Return the first known one of config.json's architectures.

    Raises:
        ConfigError: none is known; the text lists those that are.
    """
    listed = names if isinstance(names, list) else []
    for name in listed:
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name]
    known = ", ".join(ARCHITECTURES)
    raise ConfigError(f"architectures={names!r} is not known; known are {known}")
