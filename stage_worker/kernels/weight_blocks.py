"""Weights as FP8 with one scale for each 128 x 128 block: made at load, in plain torch.

Shapes: N output width, K input width, n and g their counts of blocks.
Source: https://arxiv.org/abs/2412.19437 (fine-grained quantisation)
"""

from __future__ import annotations

import torch

from stage_worker.kernels.reference import FP8_MAX, GROUP_WIDTH, LEAST_SCALE


def quantise_blocks(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float8_e4m3fn values [N, K] and float32 scales [n, g]; N and K are of whole blocks."""
    blocks = _blocks(weight_NK.float())
    scale_ng = (blocks.abs().amax((1, 3)) / FP8_MAX).clamp(min=LEAST_SCALE)
    values = (blocks / scale_ng[:, None, :, None]).to(torch.float8_e4m3fn)
    return values.view(weight_NK.shape), scale_ng


def dequantise_blocks(values_NK: torch.Tensor, scale_ng: torch.Tensor) -> torch.Tensor:
    """Return what quantised weights stand for, in float32."""
    return (_blocks(values_NK.float()) * scale_ng[:, None, :, None]).view(values_NK.shape)


def _blocks(weight_NK: torch.Tensor) -> torch.Tensor:
    """Return a view [n, 128, g, 128]."""
    num_rows, num_columns = (size // GROUP_WIDTH for size in weight_NK.shape)
    return weight_NK.view(num_rows, GROUP_WIDTH, num_columns, GROUP_WIDTH)
