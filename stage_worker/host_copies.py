"""How whole pages are copied between a stage's pool and host memory, on the compute thread.

A stage on a device that copies by itself does so beside its computing; of any other stage the pages
are read and written layer by layer.

Shapes: L layers of the stage, B bytes of a page in one layer.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch

from stage_worker.stage import Stage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Pages that were copied from host memory into the pool."""

    num_bytes: int
    took_s: Callable[[], float]
    """Tells how long that took, once a microbatch behind it has ended."""


@runtime_checkable
class CopyingStage(Protocol):
    """A stage that copies pages [L, B] of host memory by itself; bytes are those of read_page."""

    def save_pages(self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]) -> None:
        """Copy pages of the pool to host memory before anything later writes them."""
        ...

    def wait_saved(self) -> None:
        """Block until all that was saved is in host memory."""
        ...

    def restore_pages(
        self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]
    ) -> Callable[[], float]:
        """Copy pages from host memory into the pool; see Restored.took_s for what is returned."""
        ...


class LayerCopies:
    """Makes a CopyingStage of any stage, which is done when a call returns."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        description = stage.description
        self._layers = range(description.first_layer, description.last_layer)

    def save_pages(self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]) -> None:
        """See CopyingStage."""
        for page_id, page_LB in zip(page_ids, pages, strict=True):
            for layer, into in zip(self._layers, page_LB.numpy(), strict=True):
                into[:] = self._stage.read_page(layer, page_id)

    def wait_saved(self) -> None:
        """See CopyingStage."""

    def restore_pages(
        self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]
    ) -> Callable[[], float]:
        """See CopyingStage."""
        begun_s = time.monotonic()
        for page_id, page_LB in zip(page_ids, pages, strict=True):
            for layer, data in zip(self._layers, page_LB.numpy(), strict=True):
                self._stage.write_page(layer, page_id, data)
        took_s = time.monotonic() - begun_s
        return lambda: took_s
