"""The feed-forward blocks: one gated block, or many small ones of which each token uses a few.

Shapes: T rows, D hidden size, I inner width, E experts, k experts of one token, M = T * k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from stage_worker.experts_config import ExpertsConfig
from stage_worker.paged.load_linear import LinearLoader
from stage_worker.paged.operations import Operations
from stage_worker.router import Router
from stage_worker.stored_tensors import StoredTensors


class Gated:
    """down(silu(gate(x)) * up(x))."""

    def __init__(
        self, raw: StoredTensors, prefix: str, loader: LinearLoader, operations: Operations
    ) -> None:
        self._operations = operations
        self._gate_up = loader.load(raw, [f"{prefix}gate", f"{prefix}up"])
        self._down = loader.load(raw, [f"{prefix}down"])

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the block's output [T, D], void when another block runs."""
        take, num_rows, dtype = self._operations.scratch.take, len(x_TD), x_TD.dtype
        gate_up_TI = take("gate and up", (num_rows, self._gate_up.num_outputs), dtype)
        self._gate_up(x_TD, gate_up_TI)
        inner_TI = take("inner", (num_rows, self._gate_up.num_outputs // 2), dtype)
        self._operations.fused.gated_silu(gate_up_TI, inner_TI)
        out_TD = take("delta", (num_rows, self._down.num_outputs), dtype)
        self._down(inner_TI, out_TD)
        return out_TD


class Experts:
    """Rows are sorted by expert, so that one grouped product treats all experts.

    How many rows an expert has is known on the device only: nothing waits for it.
    """

    def __init__(
        self,
        raw: StoredTensors,
        config: ExpertsConfig,
        loader: LinearLoader,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._router = device_router(raw, config, operations.device)
        self._num_experts = config.num_experts
        experts = range(config.num_experts)
        self._gate_up_EDI = _stack(
            [loader.full([raw[f"{index}.gate"], raw[f"{index}.up"]]) for index in experts]
        )
        self._down_EID = _stack([loader.full([raw[f"{index}.down"]]) for index in experts])
        self._shared: Gated | None = None
        if "shared.gate" in raw:
            self._shared = Gated(raw, "shared.", loader, operations)

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the block's output [T, D]."""
        ids_Tk, weights_Tk = self._router(x_TD)
        num_chosen = ids_Tk.shape[1]
        order_M = ids_Tk.flatten().argsort(stable=True)
        counts_E = torch.zeros(self._num_experts, dtype=torch.int32, device=x_TD.device)
        counts_E.index_add_(0, ids_Tk.flatten(), torch.ones_like(order_M, dtype=torch.int32))
        ends_E = counts_E.cumsum(0, dtype=torch.int32)
        gate_up_MI = _grouped(x_TD[order_M // num_chosen], self._gate_up_EDI, ends_E)
        inner_MI = gate_up_MI.new_empty(len(order_M), gate_up_MI.shape[1] // 2)
        self._operations.fused.gated_silu(gate_up_MI, inner_MI)
        out_MD = _grouped(inner_MI, self._down_EID, ends_E)
        place_M = torch.empty_like(order_M)
        place_M[order_M] = torch.arange(len(order_M), device=x_TD.device)
        out_TkD = out_MD[place_M].view(*ids_Tk.shape, -1)
        total_TD = torch.einsum("tkd,tk->td", out_TkD.float(), weights_Tk)
        if self._shared is not None:
            total_TD += self._shared(x_TD)
        return total_TD.to(x_TD.dtype)


def device_router(raw: StoredTensors, config: ExpertsConfig, device: torch.device) -> Router:
    """Return the router of a layer, which is float32 in every model."""
    router_DE = raw["router"].to(device, torch.float32).t()
    correction_E = None
    if "correction" in raw:
        correction_E = raw["correction"].to(device, torch.float32, copy=True)
    return Router(router_DE, correction_E, config)


def _stack(weights_NK: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the experts' weights [E, K, N], the inputs of an output side by side."""
    return torch.stack(list(weights_NK)).transpose(1, 2)


def _grouped(x_MK: torch.Tensor, weights_EKN: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """Multiply rows, sorted by expert, with their experts' weights."""
    if x_MK.dtype == torch.bfloat16:
        return functional.grouped_mm(x_MK, weights_EKN, offs=ends_E)
    out_MN = x_MK.new_zeros(len(x_MK), weights_EKN.shape[2])
    begin = 0
    for weight_KN, end in zip(weights_EKN, ends_E.tolist(), strict=True):
        torch.mm(x_MK[begin:end], weight_KN, out=out_MN[begin:end])
        begin = end
    return out_MN
