"""A tiny GGUF file with the metadata that the demo model's has."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from chunkmesh.demo_model.convert import Weights

NUM_HEADS, NUM_KV_HEADS, HIDDEN = 4, 2, 64


def write_gguf(path: Path, tensors: Mapping[str, Weights], architecture: str = "llama") -> None:
    """Write a file with one layer's metadata and the given tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(264)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(96)
    writer.add_block_count(1)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_context_length(512)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(258)
    for name, weights in tensors.items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_bytes() -> bytes:
    """Return a small file's bytes."""
    ones = np.ones((8, 4), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, {"blk.0.attn_q.weight": ones, "output_norm.weight": ones[0]})
        return path.read_bytes()
