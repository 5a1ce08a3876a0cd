"""Rotary position embedding, the variant that pairs dimension i with i + D/2.

Shapes: T rows, H heads, D width of what is turned, h = D / 2.
Source: https://arxiv.org/abs/2104.09864, https://arxiv.org/abs/2309.00071 (yarn)
"""

from __future__ import annotations

import dataclasses
import math

import torch

from stage_worker.rope_config import RopeConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Angles of a microbatch's rows, float32, shared by all layers."""

    cos_T1D: torch.Tensor
    sin_T1h: torch.Tensor
    """Half as wide: both halves turn by the same angles."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads to be turned, with views of the two halves of each."""

    whole_THD: torch.Tensor
    low_THh: torch.Tensor
    high_THh: torch.Tensor


def heads(whole_THD: torch.Tensor) -> Heads:
    """Cut all heads in halves, once for all layers that use the same memory."""
    low_THh, high_THh = whole_THD.chunk(2, dim=-1)
    return Heads(whole_THD=whole_THD, low_THh=low_THh, high_THh=high_THh)


class Rope:
    """Knows a model's frequencies; frequencies never depend on the length of the context."""

    def __init__(self, config: RopeConfig, width: int) -> None:
        self._inv_freq_h = inverse_frequencies(config, width)
        self._factor = config.attention_factor

    def rotation(self, positions_T: torch.Tensor) -> Rotation:
        """Return the angles of positions, int64 [T]."""
        angle_Th = positions_T.float()[:, None] * self._inv_freq_h
        cos_Th, sin_Th = angle_Th.cos(), angle_Th.sin()
        if self._factor != 1:
            cos_Th, sin_Th = cos_Th * self._factor, sin_Th * self._factor
        return Rotation(
            cos_T1D=torch.cat((cos_Th, cos_Th), dim=-1)[:, None], sin_T1h=sin_Th[:, None]
        )


def inverse_frequencies(config: RopeConfig, width: int) -> torch.Tensor:
    """Return the angle per position of each pair, float32 [width / 2]."""
    exponent_h = torch.arange(0, width, 2, dtype=torch.int64).float() / width
    plain_h = 1.0 / config.theta**exponent_h
    if config.kind == "llama3":
        return _llama3(config, plain_h)
    if config.kind == "yarn":
        return _yarn(config, plain_h, width)
    return plain_h / config.factor


def _llama3(config: RopeConfig, plain_h: torch.Tensor) -> torch.Tensor:
    """Slow down long waves by the factor, keep short ones, and blend in between."""
    low, high = config.low_freq_factor, config.high_freq_factor
    turns_h = config.original_positions * plain_h / (2 * math.pi)
    kept_h = ((turns_h - low) / (high - low)).clamp(0, 1)
    return (1 - kept_h) * plain_h / config.factor + kept_h * plain_h


def _yarn(config: RopeConfig, plain_h: torch.Tensor, width: int) -> torch.Tensor:
    """Keep the first pairs, slow down the last ones by the factor, and blend in between."""

    def pair_of(turns: float) -> float:
        """Return the pair, as a fraction, that turns so often over the original context."""
        waves = config.original_positions / (turns * 2 * math.pi)
        return width * math.log(waves) / (2 * math.log(config.theta))

    first, last = pair_of(config.beta_fast), pair_of(config.beta_slow)
    if config.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first == last:
        last += 0.001
    slowed_h = ((torch.arange(width // 2).float() - first) / (last - first)).clamp(0, 1)
    return plain_h / config.factor * slowed_h + plain_h * (1 - slowed_h)


def rotate(x: Heads, rotation: Rotation, out: Heads) -> None:
    """Turn all heads of x by their rows' angles, into out, which is other memory.

    Narrow heads are turned in float32 and rounded once. Angles rounded to the heads' type, which
    is what transformers has, are further from what it computes in float32.
    """
    if out.whole_THD.dtype != torch.float32:
        wide, turned = heads(x.whole_THD.float()), heads(torch.empty(x.whole_THD.shape))
        rotate(wide, rotation, turned)
        out.whole_THD.copy_(turned.whole_THD)
        return
    torch.mul(x.whole_THD, rotation.cos_T1D, out=out.whole_THD)
    out.low_THh.addcmul_(x.high_THh, rotation.sin_T1h, value=-1)
    out.high_THh.addcmul_(x.low_THh, rotation.sin_T1h)
