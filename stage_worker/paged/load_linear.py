"""Makes linear maps on the device of what a checkpoint stores.

Eight-bit weights stay as they are where a product with them can be computed, else they become what
they stand for. Nothing is held twice for longer than one matrix.

Shapes: N rows and K columns of a matrix, n and k its blocks, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import torch

from stage_worker.kernels.reference import GROUP_WIDTH
from stage_worker.paged.linear import BlockLinear, FullLinear, Linear
from stage_worker.paged.operations import Operations
from stage_worker.stored_tensors import StoredTensors

_log = structlog.get_logger(__name__)
_Blocks = tuple[torch.Tensor, torch.Tensor]
"""Eight-bit values [N, K] and float32 scales [n, k]."""


class LinearLoader:
    """Makes the linear maps of one layer after the other."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._told: set[str] = set()

    def load(
        self, raw: StoredTensors, roles: Sequence[str], bias_N: torch.Tensor | None = None
    ) -> Linear:
        """Merge matrices that read the same input, one below the other."""
        if self.fits(raw, roles):
            blocks = [self._blocks(raw, role) for role in roles]
            values_NK = torch.cat([values for values, _ in blocks])
            scale_nk = torch.cat([scale for _, scale in blocks])
            return BlockLinear(values_NK, scale_nk, bias_N, self._operations.scratch)
        return FullLinear(self.full([raw[role] for role in roles]), bias_N)

    def stacked(self, raw: StoredTensors, roles: Sequence[Sequence[str]]) -> _Blocks:
        """Merge the matrices of each expert that fit, and lay the experts behind one another.

        Returns eight-bit values [E, N, K] and scales [E, n, k].
        """
        values_ENK, scale_Enk = (
            torch.empty(
                len(roles), sum(map(len, parts)), parts[0].shape[1],
                dtype=parts[0].dtype, device=self._operations.device,
            )
            for parts in zip(*(self._blocks(raw, role) for role in roles[0]), strict=True)
        )  # fmt: skip
        for expert, expert_roles in enumerate(roles):
            begin = begin_n = 0
            for role in expert_roles:
                values_NK, scale_nk = self._blocks(raw, role)
                values_ENK[expert, begin : begin + len(values_NK)].copy_(values_NK)
                scale_Enk[expert, begin_n : begin_n + len(scale_nk)].copy_(scale_nk)
                begin += len(values_NK)
                begin_n += len(scale_nk)
        return values_ENK, scale_Enk

    def full(self, parts_NK: Sequence[torch.Tensor]) -> torch.Tensor:
        """Copy matrices one below the other, in the activations' type."""
        num_rows = sum(map(len, parts_NK))
        merged_NK = torch.empty(
            num_rows,
            parts_NK[0].shape[1],
            dtype=self._operations.dtype,
            device=self._operations.device,
        )
        begin = 0
        for part in parts_NK:
            merged_NK[begin : begin + len(part)].copy_(part)
            begin += len(part)
        return merged_NK

    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a norm or a bias, in the activations' type."""
        return tensor.to(self._operations.device, self._operations.dtype, copy=True)

    def fits(self, raw: StoredTensors, roles: Sequence[str]) -> bool:
        """Say whether matrices are multiplied in eight bits, and their blocks are whole ones."""
        if not self._operations.has_block_gemm:
            return False
        for index, role in enumerate(roles):
            values, scale = raw.stored(role)
            if scale is None:
                return False
            num_rows, width = values.shape
            is_whole = num_rows % GROUP_WIDTH == 0 or index == len(roles) - 1
            if width % GROUP_WIDTH or not is_whole:
                if role not in self._told:
                    self._told.add(role)
                    _log.warning(
                        "weight is not multiplied in eight bits",
                        role=role,
                        shape=tuple(values.shape),
                        why=f"it is not of whole blocks of {GROUP_WIDTH}",
                    )
                return False
        return True

    def _blocks(self, raw: StoredTensors, role: str) -> _Blocks:
        device = self._operations.device
        values_NK, scale_nk = raw.stored(role)
        assert scale_nk is not None, "only eight-bit matrices fit"
        return values_NK.to(device), scale_nk.to(device, torch.float32)
