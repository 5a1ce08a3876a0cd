"""Shapes that can be planned with by name, as the models' own config.json states them. Pure.

Source: https://huggingface.co (each model's config.json)
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.planning.model_shape import ModelShape
from scheduler.planning.shape_config import parse_shape


def _dense(
    hidden: int, inner: int, layers: int, heads: tuple[int, int], vocab: int, context: int
) -> dict[str, object]:
    """Return the fields of a dense model; heads are those of queries and of keys."""
    return {
        "max_position_embeddings": context,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": vocab,
    }


_LLAMA = (128_256, 131_072)
_QWEN = (151_936, 40_960)
"""Sizes of vocabulary and context."""
_QWEN_HEAD = {"head_dim": 128}
_QWEN_EXPERTS = {**_QWEN_HEAD, "num_experts": 128, "num_experts_per_tok": 8}

KNOWN_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "smollm2-135m": {**_dense(576, 1536, 30, (9, 3), 49_152, 8192), "tie_word_embeddings": True},
    "llama-3.1-8b": _dense(4096, 14_336, 32, (32, 8), *_LLAMA),
    "llama-3.1-70b": _dense(8192, 28_672, 80, (64, 8), *_LLAMA),
    "qwen3-8b": {**_dense(4096, 12_288, 36, (32, 8), *_QWEN), **_QWEN_HEAD},
    "qwen3-14b": {**_dense(5120, 17_408, 40, (40, 8), *_QWEN), **_QWEN_HEAD},
    "qwen3-32b": {**_dense(5120, 25_600, 64, (64, 8), *_QWEN), **_QWEN_HEAD},
    "qwen3-30b-a3b": {
        **_dense(2048, 6144, 48, (32, 4), *_QWEN),
        **_QWEN_EXPERTS,
        "moe_intermediate_size": 768,
    },
    "qwen3-235b-a22b": {
        **_dense(4096, 12_288, 94, (64, 4), *_QWEN),
        **_QWEN_EXPERTS,
        "moe_intermediate_size": 1536,
    },
    "deepseek-v3.1": {
        **_dense(7168, 18_432, 61, (128, 128), 129_280, 163_840),
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
    },
}
"""Name -> fields of its config.json."""


def known_shape(name: str) -> ModelShape | None:
    """Return the shape of that name, or None if it is not known."""
    fields = KNOWN_CONFIGS.get(name)
    return None if fields is None else parse_shape(fields, name=name)
