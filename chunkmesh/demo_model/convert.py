"""Writes a Llama-like GGUF file as a Hugging Face folder. Imports gguf and transformers.

Weights and config come from the file's own tensors and metadata, because transformers reads such a
file but refuses to save the model; only the tokenizer goes through transformers. The weights stay
float32: they are dequantised from 4 bits, and rounding them to 16 would change them once more.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from rich.progress import Progress
from safetensors.numpy import save_file
from transformers import AutoTokenizer

from chunkmesh.errors import ConfigError

Weights = npt.NDArray[np.float32]

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
# Fields of save_pretrained that only tell how this tokenizer was loaded.
_LOAD_FIELDS = ("is_local", "local_files_only", "backend")


def write_folder(gguf_path: Path, folder: Path, progress: Progress) -> None:
    """Write config, generation config, weights and tokenizer into an existing empty folder.

    Raises:
        ConfigError: the file has an architecture or a tensor that this does not know.
    """
    config, tensors = read_gguf(gguf_path, progress)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(config))
    task = progress.add_task("write weights and tokenizer", total=2)
    weights_path = folder / "model.safetensors"
    save_file(tensors, weights_path, metadata={"format": "pt"})
    # safetensors lets only the owner read; other files follow the umask.
    weights_path.chmod((folder / "config.json").stat().st_mode)
    progress.advance(task)
    _write_tokenizer(gguf_path, folder, int(config["max_position_embeddings"]))
    progress.advance(task)


def read_gguf(path: Path, progress: Progress) -> tuple[dict[str, Any], dict[str, Weights]]:
    """Return a file's metadata in the words of config.json, and its weights.

    Raises:
        ConfigError: it is no such file, not whole, or has what this does not know.
    """
    try:
        reader = gguf.GGUFReader(path)
        config = read_config(reader)
        return config, read_tensors(reader, config, progress)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"{path.name} is no GGUF file that can be read: {error}") from error


def read_config(reader: gguf.GGUFReader) -> dict[str, Any]:
    """Return the file's metadata in the words of config.json."""

    def value(key: str) -> Any:  # noqa: ANN401 -- GGUF metadata is of any type
        field = reader.get_field(key)
        if field is None:
            raise ConfigError(f"the GGUF file has no {key}")
        return field.contents()

    if value("general.architecture") != "llama":
        raise ConfigError(f"GGUF architecture {value('general.architecture')}, expected llama")
    num_heads = value("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": value("llama.embedding_length") // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": _shortest(value("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(value("llama.rope.freq_base")),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def read_tensors(
    reader: gguf.GGUFReader, config: dict[str, Any], progress: Progress
) -> dict[str, Weights]:
    """Return all weights dequantised, with the names and row order of Hugging Face."""
    num_heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, Weights] = {}
    for tensor in progress.track(reader.tensors, description="dequantise weights"):
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        match = _LAYER_TENSOR.fullmatch(tensor.name)
        part = match[2] if match else ""
        if part in num_heads:
            weights = unpermute_rows(weights, num_heads[part])
        if match and part in _LAYER_NAMES:
            name = f"model.layers.{match[1]}.{_LAYER_NAMES[part]}.weight"
        elif tensor.name in _NAMES:
            name = _NAMES[tensor.name]
        else:
            raise ConfigError(f"the GGUF file has a tensor of unknown use, {tensor.name}")
        tensors[name] = np.ascontiguousarray(weights)
    return tensors


def unpermute_rows(weights: Weights, num_heads: int) -> Weights:
    """Undo GGUF's order of a q or k projection [num_heads * head_dim, hidden_size].

    GGUF interleaves the two halves of each head for its pairwise rope; Hugging Face keeps the
    halves one after the other.
    """
    rows, columns = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32, as people write it in a config."""
    return float(str(np.float32(value)))


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the end tokens; GGUF keeps no sampling defaults, so there are none."""
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _write_tokenizer(gguf_path: Path, folder: Path, context_length: int) -> None:
    """Let transformers convert the tokenizer, and drop what belongs to this one loading."""
    tokenizer = AutoTokenizer.from_pretrained(
        str(gguf_path.parent), gguf_file=gguf_path.name, local_files_only=True
    )
    tokenizer.model_max_length = context_length
    tokenizer.save_pretrained(str(folder))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_bytes())
    for field in _LOAD_FIELDS:
        config.pop(field, None)
    _write_json(path, config | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
