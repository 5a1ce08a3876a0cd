"""A stage whose device takes as long as a test wants: it launches, and ends when told to."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

import torch

from stage_worker.launched import Finished
from stage_worker.orders import Microbatch
from stage_worker.stage import StageOutput
from tests.scripted_stage import Script, ScriptedStage

WAIT_S = 60.0


class HeldStage(ScriptedStage):
    """Implements LaunchingStage too; every launch waits for end_next."""

    def __init__(self) -> None:
        super().__init__(0, 1, 1, Script())
        self.events: list[str] = []
        """What happened, in order."""
        self.launches: queue.SimpleQueue[int] = queue.SimpleQueue()
        """seq_no of each launch."""
        self.fails = False
        """Whether the device breaks at the next end."""
        self._ends = threading.Semaphore(0)
        self._clock_s = time.monotonic() + 1000.0  # after all that a test does

    def end_next(self) -> None:
        """Let the device end the oldest microbatch that it has or gets."""
        self._ends.release()

    def launch(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> HeldMicrobatch:
        """Note it and return at once."""
        del hidden_in_TD, hidden_out_TD
        self.events.append(f"launch {microbatch.seq_no}")
        self.launches.put(microbatch.seq_no)
        return HeldMicrobatch(self, microbatch)

    def wait(self, microbatch: Microbatch) -> Finished:
        """Wait for end_next; each microbatch takes the device 2 ms, 1 ms behind the one before."""
        assert self._ends.acquire(timeout=WAIT_S)
        if self.fails:
            raise RuntimeError("the device is broken")
        self.events.append(f"end {microbatch.seq_no}")
        self._clock_s += 0.003
        return Finished(
            output=StageOutput(sampled_ids=tuple(row.seed for row in microbatch.sampling)),
            started_s=self._clock_s - 0.002,
            ended_s=self._clock_s,
        )

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Note it."""
        self.events.append(f"allocate {num_pages} {page_tokens}")

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Note it."""
        self.events.append(f"copy {source_ids} to {target_ids}")

    def release(self, row: int) -> None:
        """Note it."""
        self.events.append(f"release {row}")


class HeldMicrobatch:
    """Implements Launched."""

    def __init__(self, stage: HeldStage, microbatch: Microbatch) -> None:
        self._stage = stage
        self._microbatch = microbatch

    def wait(self) -> Finished:
        """See HeldStage.wait."""
        return self._stage.wait(self._microbatch)
