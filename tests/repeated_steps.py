"""Replays of decode steps without a GPU: the step is simply computed again from the same memory."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from unittest import mock

import torch

from stage_worker.element_type import DtypeChoice
from stage_worker.kernels import reference
from stage_worker.model_config import ModelConfig
from stage_worker.paged import load
from stage_worker.paged.backends import Chosen, choose
from stage_worker.paged.sequences import Sequences
from stage_worker.paged.stage import PagedStage

CPU = torch.device("cpu")


class RepeatingRecorder:
    """Implements Recorder; counts replays, since that they happen is what is tested."""

    def __init__(self) -> None:
        self.num_replays = 0
        self.num_recorded = 0
        self.fault: RuntimeError | None = None
        """What rehearsals raise."""

    def renew(self) -> None:
        """See Recorder."""
        self.num_recorded = 0

    def rehearse(self, step: Callable[[], None]) -> None:
        """See Recorder."""
        if self.fault is not None:
            raise self.fault
        step()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """See Recorder."""
        self.num_recorded += 1

        def replay() -> None:
            self.num_replays += 1
            step()

        return replay


class DeviceDecode:
    """Implements Attention for single tokens, from what is on the device alone."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(
        self,
        q_THd: torch.Tensor,
        run: Sequences,
        cache: reference.PagedKeysValues,
        out_THd: torch.Tensor,
    ) -> None:
        """See Attention."""
        reference.paged_decode(q_THd, cache, run.contexts, out_THd, self._scale)


def _choose(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device, wants_fp8: bool
) -> Chosen:
    chosen = choose(config, dtype=dtype, device=device, wants_fp8=wants_fp8)
    decode = DeviceDecode(config.head_dim**-0.5)
    operations = dataclasses.replace(chosen.operations, decode=decode)
    return dataclasses.replace(chosen, operations=operations)


def load_replayable(
    model_path: pathlib.Path, layers: range, dtype: DtypeChoice = "auto"
) -> PagedStage:
    """Load a stage onto the CPU whose decode steps ask the host for nothing."""
    with mock.patch.object(load, "choose", _choose):
        return load.load_paged_stage(model_path, layers=layers, device=CPU, dtype=dtype)
