"""A stage that notes what it was told, for tests that look at orders and not only at answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from stage_worker.orders import Microbatch
from stage_worker.stage import Stage, StageOutput
from tests.gate import Gate


class RecordedStage:
    """Hands everything on to a stage. Implements stage_worker.stage.Stage."""

    def __init__(self, stage: Stage, *, delay_s: float = 0.0, gate: Gate | None = None) -> None:
        """Take the stage, how long each of its forwards takes at least, and who holds them."""
        self.description = stage.description
        self.microbatches: list[Microbatch] = []
        """All that ran, in order."""
        self.told: list[tuple[str, int]] = []
        """("run", seq_no) after each forward and ("forget", row), in order."""
        self._stage = stage
        self._delay_s = delay_s
        self._gate = gate

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Make the pool."""
        self._stage.allocate(num_pages=num_pages, page_tokens=page_tokens)

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Run and note one microbatch."""
        if self._gate is not None:
            self._gate.enter()
        time.sleep(self._delay_s)
        output = self._stage.forward(microbatch, hidden_in_TD, hidden_out_TD)
        self.told.append(("run", microbatch.seq_no))
        self.microbatches.append(microbatch)
        return output

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy pages."""
        self._stage.copy_pages(source_ids, target_ids)

    def release(self, row: int) -> None:
        """Forget a row, and note it."""
        self._stage.release(row)
        self.told.append(("forget", row))

    def page_layer_bytes(self) -> int:
        """Return the size of a page in one layer."""
        return self._stage.page_layer_bytes()

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Read a page."""
        return self._stage.read_page(layer, page_id)

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Write a page."""
        self._stage.write_page(layer, page_id, data)
