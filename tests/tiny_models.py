"""Random models of a few layers, made by a fixed seed, as ordinary Hugging Face folders."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
import transformers

VOCAB_SIZE = 264


def make_tiny_llama(path: pathlib.Path, *, max_shard_size: str = "1GB", **changes: Any) -> None:
    """Write a float32 Llama with grouped heads to path; changes go into its config."""
    settings: dict[str, Any] = {
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
    }
    config = transformers.LlamaConfig(**(settings | changes))
    torch.manual_seed(20)
    model = transformers.LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # ones would hide a norm that is left out
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(path, max_shard_size=max_shard_size)


def edit_config(path: pathlib.Path, **changes: Any) -> None:
    """Change fields of a folder's config.json."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
