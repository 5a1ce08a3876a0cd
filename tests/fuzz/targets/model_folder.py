"""The small files of a model folder, which come from whoever published the model."""

from __future__ import annotations

import json
import random
from typing import Any

from chunkmesh.errors import ConfigError, InvalidRequest
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.model_files import read_model_files
from scheduler.planning.shape_config import parse_shape
from scheduler.prospect import Patience
from scheduler.registry import Registry
from scheduler.server_info import ServedModel, model_info
from scheduler.tokenizer import Tokenizer
from stage_worker.model_config import read_model_config
from stage_worker.rope import inverse_frequencies
from stage_worker.tensor_specs import embedding_spec, head_specs, layer_specs
from tests.bytes_tokenizer import bytes_tokenizer, write_bytes_folder
from tests.fuzz.json_mutation import mutated_json
from tests.fuzz.mutation import Draw
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.target import Target, refused

_COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": [257, 258],
    "torch_dtype": "float32",
}
_WINDOW = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}
_YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 1024}
_LLAMA3 = {
    "type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LATENT = {
    "q_lora_rank": 40,
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
_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
_TYPES = ["full_attention", "sliding_attention"] * 2
_FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"rope_scaling": _LLAMA3},
    "Mistral": {"sliding_window": 24, "head_dim": 16},
    "Qwen2": _WINDOW | {"layer_types": _TYPES},
    "Qwen3": _WINDOW | {"head_dim": 32, "quantization_config": _FP8},
    "Qwen3Moe": {"num_experts": 8, "num_experts_per_tok": 3, "mlp_only_layers": [2]},
    "DeepseekV2": _LATENT | {"topk_method": "group_limited_greedy"},
    "DeepseekV3": _LATENT | {"rope_parameters": _YARN | {"mscale": 1.0}},
}
_CONFIGS = tuple(
    _COMMON | {"architectures": [f"{family}ForCausalLM"]} | fields
    for family, fields in _FAMILIES.items()
)
_MEANT = ("yarn", "linear", "llama3", "dynamic", "fp8", "sliding_attention", 1.0, 128, [128, 128])
_TOKENIZER: dict[str, Any] = json.loads(bytes_tokenizer().to_str())
_TOKENIZER_CONFIG = {
    "bos_token": {"content": "<bos>"},
    "eos_token": "<eos>",
    "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
}
_GENERATION = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "eos_token_id": [257, 258],
}
_FOLDER = scratch_folder()
write_bytes_folder(_FOLDER / "whole")


def _check_config(data: bytes) -> bool:
    """What a worker believes of a config names tensors of sizes that a machine could hold."""
    folder = _FOLDER / "config"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(data)
    try:
        config = read_model_config(folder)
    except ConfigError as error:
        return refused(error)
    config.digest()
    for layer in {0, config.num_layers - 1}:
        assert len(layer_specs(config, layer)) < 100_000
    for spec in (embedding_spec(config), *head_specs(config, tied=False)):
        assert all(0 < size <= 1 << 24 for size in spec.shape)
    assert inverse_frequencies(config.rope, config.rope_dim).isfinite().all()
    return True


def _check_shape(data: bytes) -> bool:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(fields, dict):
        return False
    try:
        shape = parse_shape(fields, name="config.json")
    except ConfigError as error:
        return refused(error)
    return bool(len(shape.layers) == fields["num_hidden_layers"])


def _check_file(name: str, data: bytes) -> bool:
    """A scheduler's start-up with one file replaced, and its first answers."""
    folder = _FOLDER / "whole"
    kept = (folder / name).read_bytes()
    (folder / name).write_bytes(data)
    try:
        files = read_model_files(folder)
        tokenizer = Tokenizer(files, max_tokens=64)
    except ConfigError as error:
        return refused(error)
    finally:
        (folder / name).write_bytes(kept)
    registry = Registry(
        model_layers=1,
        page_tokens=16,
        new_token=lambda: b"",
        patience=Patience(takeover_s=1.5, announced_s=30.0),
    )
    model = ServedModel(name="m", files=files, context_length=files.context_length)
    assert isinstance(model_info(model, registry), pb.GetModelInfoResponse)
    try:
        ids = tokenizer.encode("hello <bos>")
    except InvalidRequest:
        return True
    tokenizer.decode(ids.tolist())
    (text,) = tokenizer.output_texts(1, stop=("x",), skip_special_tokens=True)
    for token_id in (*ids.tolist(), 0, 263, 2**32 - 1):
        text.push(token_id)
    return True


def _mutated_tokenizer() -> Draw:
    """Return what mostly changes what is not the vocabulary."""
    vocab = _TOKENIZER["model"]["vocab"]
    small = {**_TOKENIZER, "model": {**_TOKENIZER["model"], "vocab": {}}}
    mutate = mutated_json(small, values=("BPE", "ByteLevel", "<bos>", "Split", {"Regex": "(a*)*"}))

    def draw(random_: random.Random) -> bytes:
        text = mutate(random_)
        if random_.random() < 0.2:
            return text
        return text.replace(b'"vocab": {}', b'"vocab": ' + json.dumps(vocab).encode())

    return draw


def _bytes_of(*documents: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() for each in documents)


TARGETS = (
    Target(
        name="worker's config.json",
        seeds=_bytes_of(*_CONFIGS),
        check=_check_config,
        values=mutated_json(*_CONFIGS, values=_MEANT),
    ),
    Target(
        name="planner's config.json",
        seeds=_bytes_of(*_CONFIGS),
        check=_check_shape,
        values=mutated_json(*_CONFIGS, values=_MEANT),
    ),
    Target(
        name="scheduler's config.json",
        seeds=_bytes_of(*_CONFIGS),
        check=lambda data: _check_file("config.json", data),
        values=mutated_json(*_CONFIGS, values=_MEANT),
        examples=150,
    ),
    Target(
        name="generation_config.json",
        seeds=_bytes_of(_GENERATION),
        check=lambda data: _check_file("generation_config.json", data),
        values=mutated_json(_GENERATION),
        examples=150,
    ),
    Target(
        name="tokenizer_config.json",
        seeds=_bytes_of(_TOKENIZER_CONFIG),
        check=lambda data: _check_file("tokenizer_config.json", data),
        values=mutated_json(_TOKENIZER_CONFIG),
        examples=150,
    ),
    Target(
        name="tokenizer.json",
        seeds=_bytes_of(_TOKENIZER),
        check=lambda data: _check_file("tokenizer.json", data),
        values=_mutated_tokenizer(),
        examples=150,
    ),
)
