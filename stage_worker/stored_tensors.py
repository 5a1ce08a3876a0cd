"""Tensors as a checkpoint stores them; those in eight bits are scaled block by block when taken.

Nothing is scaled before it is taken, so a layer of many experts is never held twice.

Shapes: N rows and K columns of a matrix, n and k its blocks, the last of which may be smaller.
Source: https://arxiv.org/abs/2412.19437
"""

from __future__ import annotations

import torch

from chunkmesh.errors import ConfigError
from stage_worker.tensor_specs import TensorSpec

Block = tuple[int, int]
"""Rows and columns that share one scale."""


class StoredTensors:
    """Tensors of one part of a model, by role."""

    def __init__(self, block: Block | None) -> None:
        self._block = block
        self._tensors: dict[str, torch.Tensor] = {}
        self._scales: dict[str, torch.Tensor] = {}

    def put(self, role: str, tensor: torch.Tensor, scale_nk: torch.Tensor | None) -> None:
        """Add a tensor, with its scales if it has eight bits."""
        self._tensors[role] = tensor
        if scale_nk is not None:
            self._scales[role] = scale_nk

    def __contains__(self, role: str) -> bool:
        return role in self._tensors

    def stored(self, role: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a tensor as it is stored, to be read only, and its scales if it has eight bits."""
        return self._tensors[role], self._scales.get(role)

    def __getitem__(self, role: str) -> torch.Tensor:
        """Return a tensor to be read only; float32 if it was scaled."""
        scale_nk = self._scales.get(role)
        if scale_nk is None or self._block is None:
            return self._tensors[role]
        return dequantise(self._tensors[role], scale_nk, self._block)


def scale_spec(spec: TensorSpec, dtype: torch.dtype, block: Block | None) -> TensorSpec | None:
    """Return the tensor of scales that a stored tensor needs; None where it has full width.

    Raises:
        ConfigError: its element type has too few bits to be used without scales.
    """
    if dtype.itemsize > 1:
        return None
    if dtype != torch.float8_e4m3fn or block is None or len(spec.shape) != 2:
        raise ConfigError(
            f"tensor {spec.name} has element type {dtype}; config.json describes no such weights"
        )
    shape = tuple(-(-size // step) for size, step in zip(spec.shape, block, strict=True))
    return TensorSpec(role=spec.role, name=f"{spec.name}_scale_inv", shape=shape)


def dequantise(stored_NK: torch.Tensor, scale_nk: torch.Tensor, block: Block) -> torch.Tensor:
    """Return float32 values: each block times its scale."""
    scale_nK = scale_nk.float().repeat_interleave(block[1], dim=1)[:, : stored_NK.shape[1]]
    value_NK = stored_NK.float()
    for index, row_K in enumerate(scale_nK):
        value_NK[index * block[0] : (index + 1) * block[0]].mul_(row_K)
    return value_NK
