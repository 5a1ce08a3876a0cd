"""Experts whose weights have eight bits, multiplied by grouped products of DeepGEMM.

Few rows get slots at fixed places, so that a product reads only what is used of each expert; many
rows lie densely. Either way shapes depend on the number of rows alone, and nothing waits for the
device.

Shapes: T rows, D hidden size, I inner width, k experts of one token, S slots.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from stage_worker.experts_config import ExpertsConfig
from stage_worker.kernels.reference import GROUP_WIDTH
from stage_worker.kernels.reference_experts import ExpertSlots, count_slots
from stage_worker.paged.feed_forward import Gated, device_router
from stage_worker.paged.load_linear import LinearLoader
from stage_worker.paged.operations import Operations
from stage_worker.stored_tensors import StoredTensors

_FEW_ROWS = 128
"""Up to so many rows lie at fixed places; also the slots of an expert then, a tile of DeepGEMM."""


def fit(raw: StoredTensors, config: ExpertsConfig, loader: LinearLoader) -> bool:
    """Say whether all experts have eight bits, in whole blocks."""
    return all(
        loader.fits(raw, roles)
        for index in range(config.num_experts)
        for roles in ((f"{index}.gate", f"{index}.up"), (f"{index}.down",))
    )


class BlockExperts:
    """A feed-forward block of many small ones, of which each token uses a few."""

    def __init__(
        self,
        raw: StoredTensors,
        config: ExpertsConfig,
        loader: LinearLoader,
        operations: Operations,
    ) -> None:
        self._gemm: Any = importlib.import_module("stage_worker.kernels.block_gemm")
        self._kernels: Any = importlib.import_module("stage_worker.kernels.expert_slots")
        self._take = operations.scratch.take
        self._router = device_router(raw, config, operations.device)
        self._num_experts = config.num_experts
        experts = range(config.num_experts)
        self._gate_up = self._weights(
            loader, raw, [(f"{index}.gate", f"{index}.up") for index in experts]
        )
        self._down = self._weights(loader, raw, [(f"{index}.down",) for index in experts])
        self._shared: Gated | None = None
        if "shared.gate" in raw:
            self._shared = Gated(raw, "shared.", loader, operations)

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the block's output [T, D], void when another block runs."""
        ids_Tk, weights_Tk = self._router(x_TD)
        slots = self._slots(*ids_Tk.shape)
        self._kernels.assign(ids_Tk, slots)
        rows = self._scaled("rows", slots, x_TD.shape[1])
        self._kernels.spread(x_TD, slots, rows.values_SK, rows.scale_BgR)
        gate_up_SI = self._product("gate and up", rows, self._gate_up, slots)
        inner = self._scaled("inner", slots, gate_up_SI.shape[1] // 2)
        self._kernels.gated_silu(gate_up_SI, slots, inner.values_SK, inner.scale_BgR)
        out_SD = self._product("outputs", inner, self._down, slots)
        if self._shared is None:
            total_TD = self._take("delta", tuple(x_TD.shape), x_TD.dtype)
        else:
            total_TD = self._shared(x_TD)
        adds = self._shared is not None
        self._kernels.combine(out_SD, slots, weights_Tk, total_TD, adds=adds)
        return total_TD

    def _weights(
        self, loader: LinearLoader, raw: StoredTensors, roles: list[tuple[str, ...]]
    ) -> Any:  # noqa: ANN401 of a module that is not everywhere
        values_ENK, scale_Enk = loader.stacked(raw, roles)
        return self._gemm.ScaledExperts(values_ENK=values_ENK, scale_Eng=scale_Enk)

    def _slots(self, num_rows: int, num_chosen: int) -> ExpertSlots:
        """Return memory for the slots of so many rows."""
        is_fixed = num_rows <= _FEW_ROWS
        step = _FEW_ROWS if is_fixed else self._gemm.contiguous_step()
        num_slots = self._num_experts * step
        if not is_fixed:
            wave = self._gemm.wave_slots()
            num_slots = count_slots(num_rows, num_chosen, self._num_experts, step)
            num_slots = -(-num_slots // wave) * wave
        take, dtype = self._take, torch.int32
        return ExpertSlots(
            place_Tk=take("places", (num_rows, num_chosen), dtype),
            owner_S=take("owners", (num_slots,), dtype),
            counts_E=take("expert counts", (self._num_experts,), dtype),
            next_E=take("next slots", (self._num_experts,), dtype),
            step=step,
            is_fixed=is_fixed,
        )

    def _scaled(self, name: str, slots: ExpertSlots, width: int) -> Any:  # noqa: ANN401 as above
        """Return memory for eight-bit slots."""
        num_blocks, block_slots = slots.block_shape
        scale_shape = (num_blocks, width // GROUP_WIDTH, block_slots)
        return self._gemm.ScaledSlots(
            values_SK=self._take(
                f"expert {name}", (len(slots.owner_S), width), torch.float8_e4m3fn
            ),
            scale_BgR=self._take(f"expert {name}' scales", scale_shape, torch.float32),
        )

    def _product(self, name: str, x: Any, weight: Any, slots: ExpertSlots) -> torch.Tensor:  # noqa: ANN401 as above
        """Multiply slots with their owners' weights."""
        shape = (len(slots.owner_S), weight.values_ENK.shape[1])
        out_SN = self._take(f"expert {name}", shape, torch.bfloat16)
        if slots.is_fixed:
            self._gemm.multiply_fixed(x, weight, slots.counts_E, out_SN)
        else:
            self._gemm.multiply_contiguous(x, weight, slots.owner_S, out_SN)
        return out_SN
