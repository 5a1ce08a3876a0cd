"""Weights as FP8 with one scale for each block, 128 x 128 mostly: made at load, in plain torch.

Shapes: N output width, K input width, n and g their counts of blocks, the last of which may be
smaller.
Source: https://arxiv.org/abs/2412.19437 (fine-grained quantisation)
"""

from __future__ import annotations

import torch

from stage_worker.kernels.reference import FP8_MAX, GROUP_WIDTH, LEAST_SCALE


def quantise_blocks(
    weight_NK: torch.Tensor, block: tuple[int, int] = (GROUP_WIDTH, GROUP_WIDTH)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float8_e4m3fn values [N, K] and float32 scales [n, g]; block is rows and columns."""
    blocks = _blocks(weight_NK.float(), block)
    scale_ng = (blocks.abs().amax((1, 3)) / FP8_MAX).clamp(min=LEAST_SCALE)
    values = (blocks / scale_ng[:, None, :, None]).to(torch.float8_e4m3fn)
    num_rows, num_columns = weight_NK.shape
    values_NK = values.flatten(2).flatten(0, 1)[:num_rows, :num_columns]
    return values_NK.contiguous(), scale_ng


def dequantise_blocks(
    values_NK: torch.Tensor,
    scale_ng: torch.Tensor,
    block: tuple[int, int] = (GROUP_WIDTH, GROUP_WIDTH),
) -> torch.Tensor:
    """Return what quantised weights stand for, in float32."""
    num_rows, num_columns = values_NK.shape
    weight = _blocks(values_NK.float(), block) * scale_ng[:, None, :, None]
    return weight.flatten(2).flatten(0, 1)[:num_rows, :num_columns].contiguous()


def _blocks(weight_NK: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the blocks [n, rows, g, columns], the last ones filled up with zeros."""
    missing_N, missing_K = (-size % step for size, step in zip(weight_NK.shape, block, strict=True))
    if missing_N or missing_K:
        weight_NK = torch.nn.functional.pad(weight_NK, (0, missing_K, 0, missing_N))
    num_rows, num_columns = weight_NK.shape
    return weight_NK.view(num_rows // block[0], block[0], num_columns // block[1], block[1])
