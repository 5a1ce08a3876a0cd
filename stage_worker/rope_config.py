"""What config.json says about rotary positions, in all the spellings that files have. Pure.

Scalings whose frequencies depend on the length of the context are refused: keys are cached as they
are turned, and a longer request would need the cached ones turned otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, cast

from chunkmesh.errors import ConfigError
from stage_worker.config_fields import Fields, count, flag, number, positive

RopeKind = Literal["default", "linear", "llama3", "yarn"]
_KINDS = ("default", "linear", "llama3", "yarn")
_LENGTH_DEPENDENT = ("dynamic", "longrope", "su")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Checked settings; those that a kind does not read have their neutral value."""

    kind: RopeKind = "default"
    theta: float
    factor: float = 1.0
    """How many times longer the context is made."""
    low_freq_factor: float = 1.0
    """llama3 only, as the next one."""
    high_freq_factor: float = 4.0
    """> low_freq_factor"""
    original_positions: int = 0
    """Context length before the scaling; llama3 and yarn only."""
    beta_fast: float = 32.0
    """yarn only, as the next two."""
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """Sine and cosine are multiplied by it."""
    score_factor: float = 1.0
    """Where keys are latent, attention scores are multiplied by it."""


def parse_rope(raw: Fields) -> RopeConfig:
    """Read rope_theta, rope_scaling and the rope_parameters that newer files hold instead.

    Raises:
        ConfigError: a kind or a setting is unknown, missing or impossible.
    """
    settings, kind = _merge(raw)
    theta = positive(settings, "rope_theta")
    if theta < 1 or (kind == "yarn" and theta == 1):
        raise ConfigError(f"rope_theta={theta!r} must be at least 1, and above that for yarn")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(kind="linear", theta=theta, factor=positive(settings, "factor"))
    max_positions = count(raw, "max_position_embeddings")
    original = count(settings, "original_max_position_embeddings", default=max_positions)
    if kind == "llama3":
        return _llama3(settings, theta, original)
    stated = settings.get("original_max_position_embeddings") is not None
    factor = positive(settings, "factor", default=max_positions / original if stated else None)
    return _yarn(settings, theta, original, factor)


def _merge(raw: Fields) -> tuple[dict[str, Any], RopeKind]:
    theta = raw.get("rope_theta")
    settings: dict[str, Any] = {"rope_theta": 10000.0 if theta is None else theta}
    kind: object = None
    for field in ("rope_scaling", "rope_parameters"):
        stated = {} if raw.get(field) is None else raw[field]
        if not isinstance(stated, dict) or any(isinstance(v, dict) for v in stated.values()):
            raise ConfigError(f"{field}={stated!r} must be one set of settings for all layers")
        for name in ("type", "rope_type"):
            kind = kind if stated.get(name) is None else stated[name]
        settings |= stated
    if raw.get("original_max_position_embeddings") is not None:
        settings["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    for place in (raw, settings):
        if number(place, "partial_rotary_factor", default=1.0) != 1:
            raise ConfigError(
                f"partial_rotary_factor={place['partial_rotary_factor']!r} must be 1: "
                "parts of heads are not turned here"
            )
    return settings, _kind(kind)


def _kind(kind: object) -> RopeKind:
    if kind in _LENGTH_DEPENDENT:
        raise ConfigError(
            f"rope type {kind!r} is refused: its frequencies depend on the length of the request, "
            "so cached keys would differ from those that a longer request needs"
        )
    if kind is not None and kind not in _KINDS:
        raise ConfigError(f"rope type {kind!r} is not known; known are {', '.join(_KINDS)}")
    return cast("RopeKind", "default" if kind is None else kind)


def _llama3(settings: Fields, theta: float, original: int) -> RopeConfig:
    low, high = positive(settings, "low_freq_factor"), positive(settings, "high_freq_factor")
    if high <= low:
        raise ConfigError(f"high_freq_factor={high} must be above low_freq_factor={low}")
    return RopeConfig(
        kind="llama3",
        theta=theta,
        factor=positive(settings, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=original,
    )


def _yarn(settings: Fields, theta: float, original: int, factor: float) -> RopeConfig:
    mscale, all_dim = (number(settings, name, default=0.0) for name in ("mscale", "mscale_all_dim"))
    if mscale and all_dim:
        inferred = _magnitude(factor, mscale) / _magnitude(factor, all_dim)
    else:
        inferred = _magnitude(factor, 1)
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_positions=original,
        beta_fast=positive(settings, "beta_fast", default=32.0),
        beta_slow=positive(settings, "beta_slow", default=1.0),
        truncate=flag(settings, "truncate", default=True),
        attention_factor=positive(settings, "attention_factor", default=inferred),
        score_factor=_magnitude(factor, all_dim) ** 2,
    )


def _magnitude(factor: float, mscale: float) -> float:
    """Return how much longer contexts sharpen attention; 1 for no scaling."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
