"""The operations that a stage's layers are made of, chosen once for all of them."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch

from stage_worker.kernels.reference import Angles, HeadNorms, LatentParts, PagedKeysValues
from stage_worker.paged.attention import Attention, SequencesAttention
from stage_worker.paged.scratch import Scratch


class Fused(Protocol):
    """Small operations between products; kernels.reference says what each computes."""

    def add_norm(
        self,
        delta_TD: torch.Tensor | None,
        hidden_TD: torch.Tensor,
        weight_D: torch.Tensor,
        eps: float,
        out_TD: torch.Tensor,
    ) -> None:
        """Add to the residual stream in place and write its norm."""
        ...

    def rope_store(
        self,
        qkv_TJd: torch.Tensor,
        angles: Angles,
        norms: HeadNorms | None,
        cache: PagedKeysValues,
        slots_T: torch.Tensor,
        q_THd: torch.Tensor,
    ) -> None:
        """Normalise and turn heads; write keys and values to their slots."""
        ...

    def latent_store(
        self,
        latent_Td: torch.Tensor,
        angles: Angles,
        parts: LatentParts,
        cache: PagedKeysValues,
        slots_T: torch.Tensor,
    ) -> None:
        """Normalise latents and turn their keys; write both to their slots."""
        ...

    def turn_queries(
        self, q_TN: torch.Tensor, angles: Angles, parts: LatentParts, q_THq: torch.Tensor
    ) -> None:
        """Write heads whose last columns are turned."""
        ...

    def gated_silu(self, gate_up_TI: torch.Tensor, out_TI: torch.Tensor) -> None:
        """Write silu(first half) * second half."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What layers compute with, and the memory that they share."""

    fused: Fused
    prefill: Attention
    decode: Attention
    sequences: SequencesAttention | None
    """For chunks, where latents are worth expanding; None where they are not."""
    scratch: Scratch
    dtype: torch.dtype
    device: torch.device
    has_block_gemm: bool
    """Whether products with eight-bit weights need no dequantised copy."""
