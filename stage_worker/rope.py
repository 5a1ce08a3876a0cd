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


def rotate(x_THD: torch.Tensor, rotation: Rotation, out_THD: torch.Tensor) -> None:
    """Turn all heads of x_THD by their rows' angles, into out_THD."""
    low_THh, high_THh = x_THD.chunk(2, dim=-1)
    out_low_THh, out_high_THh = out_THD.chunk(2, dim=-1)
    torch.mul(x_THD, rotation.cos_T1D, out=out_THD)
    out_low_THh.addcmul_(high_THh, rotation.sin_T1h, value=-1)
    out_high_THh.addcmul_(low_THh, rotation.sin_T1h)
