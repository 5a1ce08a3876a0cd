"""Attention whose heads have keys and values of their own.

Shapes: T rows, D hidden size, J all heads of the merged projection, H query heads, d head_dim.
"""

from __future__ import annotations

import torch

from stage_worker.kernels.reference import HeadNorms, PagedKeysValues
from stage_worker.model_config import ModelConfig
from stage_worker.paged.attention import TorchAttention
from stage_worker.paged.load_linear import LinearLoader
from stage_worker.paged.operations import Operations
from stage_worker.paged.placed import Placed
from stage_worker.paged.sequences import Sequences
from stage_worker.stored_tensors import StoredTensors


class HeadsAttention:
    """Projection, attention and mixing of one layer."""

    def __init__(
        self,
        raw: StoredTensors,
        config: ModelConfig,
        window: int | None,
        loader: LinearLoader,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._num_heads, self._head_dim = config.num_heads, config.head_dim
        bias_N = None
        if config.qkv_bias:
            bias_N = torch.cat([loader.vector(raw[f"{part}_bias"]) for part in "qkv"])
        self._qkv = loader.load(raw, "qkv", bias_N)
        self._o = loader.load(raw, ["o"])
        self._norms: HeadNorms | None = None
        if config.qk_norm:
            self._norms = HeadNorms(
                q_d=loader.vector(raw["q_norm"]),
                k_d=loader.vector(raw["k_norm"]),
                eps=config.rms_norm_eps,
            )
        self._windowed: TorchAttention | None = None
        if window is not None:
            self._windowed = TorchAttention(config.head_dim**-0.5, window)

    def store(
        self, normed_TD: torch.Tensor, placed: Placed, cache: PagedKeysValues
    ) -> torch.Tensor:
        """Write the rows' keys and values to their pages; return the queries [T, H, d]."""
        take, dtype = self._operations.scratch.take, normed_TD.dtype
        num_rows = len(normed_TD)
        qkv_TN = take("projected", (num_rows, self._qkv.num_outputs), dtype)
        self._qkv(normed_TD, qkv_TN)
        qkv_TJd = qkv_TN.view(num_rows, -1, self._head_dim)
        q_THd = take("queries", (num_rows, self._num_heads, self._head_dim), dtype)
        self._operations.fused.rope_store(
            qkv_TJd, placed.angles, self._norms, cache, placed.slots_T, q_THd
        )
        return q_THd

    def attend(
        self, q_THd: torch.Tensor, runs: tuple[Sequences, ...], cache: PagedKeysValues
    ) -> torch.Tensor:
        """Return what the rows attended to, mixed: [T, D]."""
        operations = self._operations
        attended_THd = operations.scratch.take("attended", tuple(q_THd.shape), q_THd.dtype)
        for run in runs:
            kernel = operations.decode if run.is_decode else operations.prefill
            attention = self._windowed or kernel
            attention(run.own(q_THd), run, cache, run.own(attended_THd))
        shape = (len(q_THd), self._o.num_outputs)
        delta_TD = operations.scratch.take("delta", shape, q_THd.dtype)
        self._o(attended_THd.flatten(1), delta_TD)
        return delta_TD
