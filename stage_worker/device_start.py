"""What a stage on a GPU does between the loading of its weights and serving.

It decides how decode steps are launched, compiles kernels, and then knows how much memory is left
for keys and values. On the thread that loads; progress is told by readiness.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Literal

import structlog
import torch

from chunkmesh.side_door import Readiness
from stage_worker.links import most_link_slots
from stage_worker.paged.capacity import Remaining, capacity_tokens
from stage_worker.paged.decode_graphs import CudaRecorder
from stage_worker.paged.stage import PagedStage
from stage_worker.paged.warm_up import WarmUp
from stage_worker.paged.warm_up_plan import batch_sizes, forwards
from stage_worker.warm_up_turn import turn

_log = structlog.get_logger(__name__)
WarmupMode = Literal["parallel", "serial", "off"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What was asked for."""

    warmup_mode: WarmupMode
    cuda_graph_max_bs: int
    """0 replays nothing."""
    mem_fraction: float
    max_total_tokens: int | None
    """None is what the fraction leaves."""


class DeviceStart:
    """Prepares one stage."""

    def __init__(self, limits: DeviceLimits, stage: PagedStage, cache_folder: Path) -> None:
        """Plan; cache_folder holds the lock of a serial warm-up."""
        self._limits = limits
        self._stage = stage
        device = self._device = torch.device(stage.description.device)
        self._lock = cache_folder / "warm-up.lock"
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count
        self._sizes = batch_sizes(int(num_sms))
        is_off = limits.warmup_mode == "off"
        more_chunks = stage.compiled_rows(self._sizes[-1])
        plan = () if is_off else tuple(forwards(self._sizes, more_chunks=more_chunks))
        self._warm_up = WarmUp(plan)
        self._is_done = False

    def readiness(self) -> Readiness | None:
        """Say how far it is; None once it is done. From any thread."""
        return None if self._is_done else self._warm_up.readiness()

    def prepare(self) -> int:
        """Warm the stage up and return its KV capacity in tokens.

        Raises:
            ConfigError: hardly anything fits beside the weights.
        """
        torch.cuda.set_device(self._device)
        is_serial = self._limits.warmup_mode == "serial"
        with turn(self._lock) if is_serial else contextlib.nullcontext():
            self._stage.use_replays(self._limits.cuda_graph_max_bs, CudaRecorder(self._device))
            self._warm_up.run(self._stage)
        self._is_done = True
        return self._limits.max_total_tokens or self._measured()

    def _measured(self) -> int:
        """Size the pool by the memory that is free now.

        What torch keeps of the largest batch and of the replays counts as taken: it is taken again.
        """
        about = self._stage.description
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        link_bytes = most_link_slots(self._device) * self._sizes[-1] * about.hidden_size
        remaining = Remaining(
            free_bytes=free_bytes,
            link_bytes=link_bytes * about.dtype.itemsize,
            token_bytes=about.kv_bytes_per_token,
        )
        tokens = capacity_tokens(remaining, self._limits.mem_fraction)
        _log.info(
            "KV pool sized",
            tokens=tokens,
            token_bytes=remaining.token_bytes,
            free_bytes=free_bytes,
            total_bytes=total_bytes,
            mem_fraction=self._limits.mem_fraction,
        )
        return tokens
