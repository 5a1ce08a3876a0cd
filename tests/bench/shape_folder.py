"""Model folders of real shapes without weights: a config.json and a tokenizer of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bytes_tokenizer import write_bytes_folder

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 257,
    "max_position_embeddings": 1 << 20,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-8b": _QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
    },
    "small": _QWEN3
    | {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
    },
}
_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def write_shape(path: Path, shape: str, *, fp8: bool = False) -> int:
    """Write the folder of a shape, with eight-bit weights or without; return its vocabulary."""
    write_bytes_folder(path)
    fields = dict(SHAPES[shape])
    if fp8:
        fields["quantization_config"] = _FP8
    (path / "config.json").write_text(json.dumps(fields))
    return int(fields["vocab_size"])
