"""What stages on every device do alike: pages of a pool by their place in the model, and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from chunkmesh.errors import InvariantViolated
from stage_worker.readout import Readout
from stage_worker.stage import StageDescription


class _Pool(Protocol):
    """Memory of pages; layers are indices in the stage."""

    @property
    def page_layer_bytes(self) -> int: ...

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None: ...

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]: ...

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None: ...


class _Tables(Protocol):
    """Page tables by row."""

    def release(self, row: int) -> None: ...


PoolT = TypeVar("PoolT", bound=_Pool)
TablesT = TypeVar("TablesT", bound=_Tables)


class PooledStage(Generic[PoolT, TablesT]):
    """Base of stages that have their pages in a pool; the stage makes pool and tables."""

    def __init__(
        self, description: StageDescription, tables: TablesT, readout: Readout | None
    ) -> None:
        """Begin without a pool; readout is None but on the last stage."""
        self.description = description
        self._readout = readout
        self._pool: PoolT | None = None
        self._tables = tables

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy whole pages inside the pool, in all layers."""
        self._owned_pool().copy_pages(source_ids, target_ids)

    def release(self, row: int) -> None:
        """Forget a request's row."""
        self._tables.release(row)
        if self._readout is not None:
            self._readout.release(row)

    def page_layer_bytes(self) -> int:
        """Bytes of one page in one layer."""
        return self._owned_pool().page_layer_bytes

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return a page's bytes in one layer (absolute index): K, then V."""
        return self._owned_pool().read_page(layer - self.description.first_layer, page_id)

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Fill a page in one layer (absolute index) from bytes of page_layer_bytes()."""
        self._owned_pool().write_page(layer - self.description.first_layer, page_id, data)

    def _owned_pool(self) -> PoolT:
        if self._pool is None:
            raise InvariantViolated("the pages were not allocated")
        return self._pool
