"""Reads config.json of an ordinary Hugging Face folder into one frozen value. Imports no torch.

Nothing is guessed that the file states, and a setting that this code does not compute is refused
by name rather than ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from chunkmesh.coverage import MAX_MODEL_LAYERS
from chunkmesh.errors import ConfigError
from chunkmesh.json_text import parse_json
from stage_worker.architectures import Architecture, find_architecture
from stage_worker.config_fields import Fields, choice, count, flag, items, positive
from stage_worker.experts_config import ExpertsConfig, parse_experts
from stage_worker.latent_config import LatentConfig, parse_latent
from stage_worker.rope_config import RopeConfig, parse_rope

_DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What the forward pass needs to know of a model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of the cache; divides num_heads. 1 where keys are latent."""
    head_dim: int
    """Width of a cached key; not always hidden_size / num_heads."""
    latent: LatentConfig | None
    qkv_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    """For each layer, how many positions a query sees, its own included; None for all."""
    experts: ExpertsConfig | None
    rms_norm_eps: float
    rope: RopeConfig
    fp8_block: tuple[int, int] | None
    """Rows and columns of a weight that share one scale; None if all weights have full width."""
    dtype: str | None
    """Of weights and activations, as the file states it; None where it does not."""
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @property
    def rope_dim(self) -> int:
        """Width of the part of a key that is turned, even."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def num_planes(self) -> int:
        """What the cache holds of a token: a key and a value, or one latent that is both."""
        return 2 if self.latent is None else 1

    def has_experts(self, layer: int) -> bool:
        """Say whether a layer, absolute index, has experts instead of one dense block."""
        return self.experts is not None and layer in self.experts.layers

    def digest(self) -> bytes:
        """Return the SHA-256 of all fields, 32 bytes; equal for equal models only."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).digest()


def read_model_config(model_path: pathlib.Path) -> ModelConfig:
    """Read model_path/config.json.

    Raises:
        ConfigError: the file is missing or unreadable, or states something unknown.
    """
    path = model_path / "config.json"
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; is this a model folder?"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(raw).__name__}")
    return parse_model_config(raw)


def parse_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Check the fields of a config.json and name what is wrong.

    Raises:
        ConfigError: a field is missing, impossible, or asks for something unknown.
    """
    architecture = find_architecture(raw.get("architectures"))
    raw = {**architecture.defaults, **raw}
    _refuse_unknown(raw)
    num_heads = count(raw, "num_attention_heads")
    hidden_size = count(raw, "hidden_size")
    latent = parse_latent(raw, present=architecture.latent)
    num_kv_heads = count(raw, "num_key_value_heads", default=num_heads)
    head_dim = count(raw, "head_dim", default=hidden_size // num_heads)
    config = ModelConfig(
        architecture=architecture.name,
        vocab_size=count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=count(raw, "intermediate_size"),
        num_layers=count(raw, "num_hidden_layers", most=MAX_MODEL_LAYERS),
        num_heads=num_heads,
        num_kv_heads=1 if latent else num_kv_heads,
        head_dim=latent.rank + latent.rope_dim if latent else head_dim,
        latent=latent,
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
        windows=_windows(raw, architecture),
        experts=parse_experts(raw, architecture.experts),
        rms_norm_eps=positive(raw, "rms_norm_eps", default=1e-6),
        rope=parse_rope(raw),
        fp8_block=_fp8_block(raw.get("quantization_config")),
        dtype=_dtype(raw),
        max_position_embeddings=count(raw, "max_position_embeddings"),
        tie_word_embeddings=flag(raw, "tie_word_embeddings"),
        eos_token_ids=_token_ids(raw.get("eos_token_id")),
    )
    _check_heads(config)
    return config


def _check_heads(config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise ConfigError(
            f"num_key_value_heads={config.num_kv_heads} does not divide "
            f"num_attention_heads={config.num_heads}"
        )
    if config.latent is None and config.head_dim % 2:
        raise ConfigError(f"head_dim={config.head_dim} is odd; rope needs pairs")


def _refuse_unknown(raw: Fields) -> None:
    """Refuse settings that would change the result and that are not computed here."""
    choice(raw, "hidden_act", ("silu",), default="silu")
    for field in ("attention_bias", "mlp_bias"):
        if flag(raw, field):
            raise ConfigError(f"{field}={raw[field]!r} is not supported")


def _windows(raw: Fields, architecture: Architecture) -> tuple[int | None, ...]:
    """Return each layer's window; layer_types, where stated, says which layers have one."""
    num_layers = count(raw, "num_hidden_layers")
    rule = architecture.window
    unused = rule in {"switched", "late_layers"} and not flag(raw, "use_sliding_window")
    types = items(raw, "layer_types", str)
    if rule == "never" or unused or raw.get("sliding_window") is None:
        if "sliding_attention" in (types or ()):
            raise ConfigError("layer_types asks for sliding_attention, but no window is stated")
        return (None,) * num_layers
    window = count(raw, "sliding_window")
    if rule != "late_layers":
        return (window,) * num_layers
    if types is None:
        first = count(raw, "max_window_layers", default=28, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    known = {"full_attention": None, "sliding_attention": window}
    if len(types) != num_layers or not all(kind in known for kind in types):
        raise ConfigError(
            f"layer_types={list(types)!r} must name {', '.join(known)} for each layer"
        )
    return tuple(known[kind] for kind in types)


def _fp8_block(settings: object) -> tuple[int, int] | None:
    """Read the one way of quantising that is known: eight-bit floats, scaled by block."""
    if settings is None or settings == {}:
        return None
    if isinstance(settings, dict) and settings.get("quant_method") == "fp8":
        block = settings.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2 and all(type(n) is int for n in block):
            rows, columns = block
            if rows > 0 and columns > 0:
                return rows, columns
    raise ConfigError(
        f"quantization_config={settings!r} is not supported; "
        "known is quant_method 'fp8' with a weight_block_size of two numbers"
    )


def _dtype(raw: Fields) -> str | None:
    """Read the element type by its name of today, or by the older one."""
    stated = {field: raw[field] for field in ("dtype", "torch_dtype") if raw.get(field) is not None}
    names = {choice(raw, field, _DTYPES) for field in stated}
    if len(names) > 1:
        raise ConfigError(f"config.json states two element types: {stated!r}")
    return names.pop() if names else None


def _token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise ConfigError(f"eos_token_id={value!r} must be a token id or a list of them")
    return tuple(ids)
