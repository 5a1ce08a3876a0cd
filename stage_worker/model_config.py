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

from chunkmesh.errors import ConfigError

KNOWN_ARCHITECTURES = ("LlamaForCausalLM",)


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
    """Divides num_heads."""
    head_dim: int
    """Even; not always hidden_size / num_heads."""
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

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
        raw = json.loads(path.read_text(encoding="utf-8"))
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
    _refuse_unknown(raw)
    num_heads = _count(raw, "num_attention_heads")
    hidden_size = _count(raw, "hidden_size")
    config = ModelConfig(
        architecture=_architecture(raw),
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_count(raw, "num_key_value_heads", default=num_heads),
        head_dim=_count(raw, "head_dim", default=hidden_size // num_heads),
        rms_norm_eps=_positive(raw, "rms_norm_eps", default=1e-6),
        rope_theta=_rope_theta(raw),
        max_position_embeddings=_count(raw, "max_position_embeddings"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_token_ids(raw.get("eos_token_id")),
    )
    if config.num_heads % config.num_kv_heads:
        raise ConfigError(
            f"num_key_value_heads={config.num_kv_heads} does not divide "
            f"num_attention_heads={config.num_heads}"
        )
    if config.head_dim % 2:
        raise ConfigError(f"head_dim={config.head_dim} is odd; rope needs pairs")
    return config


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or ()
    for name in names:
        if name in KNOWN_ARCHITECTURES:
            return str(name)
    raise ConfigError(
        f"architectures={list(names)} is not known; known are {', '.join(KNOWN_ARCHITECTURES)}"
    )


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    """Refuse settings that would change the result and that are not computed here."""
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act={raw['hidden_act']!r} is not known; known is 'silu'")
    for field in ("attention_bias", "mlp_bias", "quantization_config"):
        if raw.get(field):
            raise ConfigError(f"{field}={raw[field]!r} is not supported")


def _rope_theta(raw: Mapping[str, Any]) -> float:
    """Accept rope_theta, rope_scaling and the rope_parameters that newer files hold instead."""
    settings: dict[str, Any] = {"rope_theta": raw.get("rope_theta", 10000.0)}
    for field in ("rope_scaling", "rope_parameters"):
        settings |= raw.get(field) or {}
        kind = settings.pop("rope_type", settings.pop("type", "default"))
        if kind not in {None, "default"}:
            raise ConfigError(f"{field} type {kind!r} is not known; known is 'default'")
    if settings.get("partial_rotary_factor", 1) != 1:
        raise ConfigError(f"partial_rotary_factor={settings['partial_rotary_factor']} must be 1")
    return _positive(settings, "rope_theta")


def _token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and token >= 0 for token in ids):
        raise ConfigError(f"eos_token_id={value!r} must be a token id or a list of them")
    return tuple(ids)


def _count(raw: Mapping[str, Any], field: str, *, default: int | None = None) -> int:
    value = raw.get(field)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json: {field}={value!r} must be a whole number >= 1")
    return value


def _positive(raw: Mapping[str, Any], field: str, *, default: float | None = None) -> float:
    value = raw.get(field)
    if value is None:
        value = default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"config.json: {field}={value!r} must be a number > 0")
    return float(value)
