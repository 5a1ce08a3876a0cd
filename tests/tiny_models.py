"""Random models of a few layers, made by a fixed seed, as ordinary Hugging Face folders."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
import transformers

VOCAB_SIZE = 264

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,  # spread logits, so that greedy ids do not hang on rounding
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 0,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 24, "head_dim": 16},
    "Qwen2": {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96},
    "Qwen3": {"head_dim": 32, "rms_norm_eps": 1e-2},
    "Qwen3Moe": {
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "mlp_only_layers": [2],
    },
    "DeepseekV2": _LATENT
    | {
        "q_lora_rank": None,
        "first_k_dense_replace": 0,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 1.5,
    },
    "DeepseekV3": _LATENT
    | {
        "q_lora_rank": 40,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
        },
    },
}
"""What sets each family's tiny model apart from the common one."""


def make_tiny(
    path: pathlib.Path, family: str, *, max_shard_size: str = "1GB", **changes: Any
) -> None:
    """Write a float32 model of a family to path; changes go into its config."""
    config_class = getattr(transformers, f"{family}Config")
    config = config_class(**(_COMMON | dict(FAMILIES[family]) | changes))
    torch.manual_seed(20)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # ones would hide a norm that is left out
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):  # zeros would hide a bias
                weight.uniform_(-0.5, 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.uniform_(-0.3, 0.3)
    model.save_pretrained(path, max_shard_size=max_shard_size)


def make_tiny_llama(path: pathlib.Path, *, max_shard_size: str = "1GB", **changes: Any) -> None:
    """Write a float32 Llama with grouped heads to path; changes go into its config."""
    make_tiny(path, "Llama", max_shard_size=max_shard_size, **changes)


def edit_config(path: pathlib.Path, **changes: Any) -> None:
    """Change fields of a folder's config.json; None takes one out."""
    file = path / "config.json"
    fields = json.loads(file.read_text()) | changes
    kept = {k: v for k, v in fields.items() if v is not None or k not in changes}
    file.write_text(json.dumps(kept))
