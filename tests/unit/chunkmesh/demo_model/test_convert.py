"""GGUF's tensors and metadata in the words of Hugging Face, on a tiny file written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from rich.progress import Progress

from chunkmesh.demo_model.convert import Weights, read_config, read_tensors, unpermute_rows
from chunkmesh.errors import ConfigError
from tests.gguf_file import NUM_HEADS, NUM_KV_HEADS, write_gguf

QUIET = Progress(disable=True)


def permute_rows(weights: Weights, num_heads: int) -> Weights:
    """Write the rows of each head as GGUF does: row i of the first half, then of the second."""
    head_dim = len(weights) // num_heads
    half = head_dim // 2
    order = [
        head * head_dim + part * half + index
        for head in range(num_heads)
        for index in range(half)
        for part in range(2)
    ]
    return weights[order]


def opened(path: Path, tensors: dict[str, Weights], architecture: str = "llama") -> Any:
    """Write and open a file."""
    write_gguf(path, tensors, architecture)
    return gguf.GGUFReader(path)


def random_weights(rows: int, columns: int) -> Weights:
    """Return weights that differ everywhere."""
    return np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)


def test_rows_of_q_and_k_come_back_in_order() -> None:
    """Otherwise rope would turn the wrong pairs, and the model would babble."""
    weights = random_weights(48, 8)
    for num_heads in (1, 3, 6):
        np.testing.assert_array_equal(
            unpermute_rows(permute_rows(weights, num_heads), num_heads), weights
        )


def test_tensors_get_their_names_and_order(tmp_path: Path) -> None:
    """Only q and k were permuted, each by its own number of heads."""
    q, k, v = random_weights(64, 64), random_weights(32, 64), random_weights(33, 64)
    tensors = {
        "blk.0.attn_q.weight": permute_rows(q, NUM_HEADS),
        "blk.0.attn_k.weight": permute_rows(k, NUM_KV_HEADS),
        "blk.0.attn_v.weight": v,
        "token_embd.weight": v,
    }
    reader = opened(tmp_path / "tiny.gguf", tensors)
    read = read_tensors(reader, read_config(reader), QUIET)
    expected = {
        "model.layers.0.self_attn.q_proj.weight": q,
        "model.layers.0.self_attn.k_proj.weight": k,
        "model.layers.0.self_attn.v_proj.weight": v,
        "model.embed_tokens.weight": v,
    }
    assert read.keys() == expected.keys()
    for name, weights in expected.items():
        np.testing.assert_array_equal(read[name], weights)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    """A model that lacks one of its weights must not come into being."""
    reader = opened(tmp_path / "tiny.gguf", {"blk.0.attn_q.bias": random_weights(1, 64)})
    with pytest.raises(ConfigError, match=r"unknown use, blk\.0\.attn_q\.bias"):
        read_tensors(reader, read_config(reader), QUIET)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    """Its tensors would need another treatment."""
    reader = opened(tmp_path / "tiny.gguf", {}, architecture="gpt2")
    with pytest.raises(ConfigError, match="gpt2, expected llama"):
        read_config(reader)


def test_the_config_says_what_the_metadata_says(tmp_path: Path) -> None:
    """float32 numbers are written as people write them."""
    config = read_config(opened(tmp_path / "tiny.gguf", {}))
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 10000
    assert config["head_dim"] == 16
    assert config["tie_word_embeddings"] is True
    assert (config["num_hidden_layers"], config["max_position_embeddings"]) == (1, 512)
