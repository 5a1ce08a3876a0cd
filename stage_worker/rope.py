"""Rotary position embedding, the variant that pairs dimension i with i + D/2.

Shapes: T rows, H heads, D head_dim.
Source: https://arxiv.org/abs/2104.09864
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Angles of a microbatch's rows, shared by all layers."""

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

    def __init__(self, *, head_dim: int, theta: float) -> None:
        exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        self._inv_freq = 1.0 / theta**exponent

    def rotation(self, positions_T: torch.Tensor) -> Rotation:
        """Return the angles of positions, int64 [T]."""
        angle_Th = positions_T.float()[:, None] * self._inv_freq
        cos_Th = angle_Th.cos()
        return Rotation(
            cos_T1D=torch.cat((cos_Th, cos_Th), dim=-1)[:, None],
            sin_T1h=angle_Th.sin()[:, None],
        )


def rotate(x: Heads, rotation: Rotation, out: Heads) -> None:
    """Turn all heads of x by their rows' angles, into out, which is other memory."""
    torch.mul(x.whole_THD, rotation.cos_T1D, out=out.whole_THD)
    out.low_THh.addcmul_(x.high_THh, rotation.sin_T1h, value=-1)
    out.high_THh.addcmul_(x.low_THh, rotation.sin_T1h)
