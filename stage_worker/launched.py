"""How a stage is given a microbatch that it need not have finished before the next one comes.

A stage on a GPU launches: the GPU works while the compute thread prepares what is next. Any other
stage computes at once, which is the same with nothing left to wait for.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Protocol, runtime_checkable

import torch

from stage_worker.orders import Microbatch
from stage_worker.stage import Stage, StageOutput


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A microbatch that was computed; times are of the monotonic clock."""

    output: StageOutput
    started_s: float
    ended_s: float
    """>= started_s; between both the device worked on this microbatch alone."""


class Launched(Protocol):
    """A microbatch on its way through a stage."""

    def wait(self) -> Finished:
        """Block until it is computed; for any thread, in the order of the launches, once."""
        ...


@runtime_checkable
class LaunchingStage(Protocol):
    """A stage that works on a microbatch while the next one is prepared."""

    def launch(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> Launched:
        """Do what Stage.forward does, but leave the end to wait.

        Whoever uses the tensors afterwards does so in the order of this thread's stream.
        """
        ...


class ComputedStage:
    """Makes a LaunchingStage of any stage: what was launched is computed."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def launch(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> Computed:
        """See LaunchingStage."""
        started_s = time.monotonic()
        output = self._stage.forward(microbatch, hidden_in_TD, hidden_out_TD)
        return Computed(Finished(output=output, started_s=started_s, ended_s=time.monotonic()))


class Computed:
    """Implements Launched for what is computed already."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished

    def wait(self) -> Finished:
        """See Launched."""
        return self._finished
