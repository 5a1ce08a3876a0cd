"""Memory that loaded pages wait in until the compute thread takes them. Any thread may call.

It is taken slab by slab as pages are read. On a GPU slabs are pinned, so that pages reach the
device without another copy; torch keeps pinned memory for the next load, and hands none of it out
before the copies from it have ended.

Shapes: n pages, L layers, B bytes of a page in one layer.
"""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import torch

SLAB_BYTES = 128 << 20
"""About that: whole pages. Of pinned memory torch makes powers of two."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class StagedLoad:
    """Room for the leading pages of one load, and those that were read."""

    load_id: int
    num_room: int
    """Pages that there is room for."""
    page_shape: tuple[int, int]
    """(layers, bytes of a page in one layer)"""
    is_pinned: bool = False
    host_ids: tuple[int, ...] = ()
    """Host pages that lie before those."""
    num_pages: int | None = None
    """Pages that are ready; None while the load runs."""
    _read: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    """Sound pages by index."""
    _num_read: int = 0
    """Leading ones."""
    _slabs: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    _making: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        layers, layer_bytes = self.page_shape
        return layers * layer_bytes

    @property
    def slab_pages(self) -> int:
        """Pages of a slab; each begins at a multiple of it."""
        return max(1, SLAB_BYTES // self.page_bytes)

    @property
    def num_read(self) -> int:
        """Leading pages that were read so far."""
        return self._num_read

    @property
    def ready(self) -> list[torch.Tensor]:
        """The pages [L, B] that are ready, of a load that has ended."""
        return [self._read[index] for index in range(self.num_pages or 0)]

    def room(self, pages: slice) -> torch.Tensor:
        """Return memory [n, L, B] for pages of one slab, with any contents; blocks if it is new."""
        slab_index, first = divmod(pages.start, self.slab_pages)
        with self._making:
            slab_nLB = self._slabs.get(slab_index)
            if slab_nLB is None:
                num_pages = min(self.slab_pages, self.num_room - slab_index * self.slab_pages)
                slab_nLB = _memory((num_pages, *self.page_shape), pinned=self.is_pinned)
                self._slabs[slab_index] = slab_nLB
        return slab_nLB[first : first + pages.stop - pages.start]

    def add(self, first: int, pages_nLB: torch.Tensor) -> None:
        """Take sound pages from index first on."""
        self._read.update(enumerate(pages_nLB.unbind(0), first))
        while self._num_read in self._read:
            self._num_read += 1


class Staging:
    """Owner of all staged loads and of their bound."""

    def __init__(self, max_bytes: int, *, pinned: bool = False) -> None:
        self._max_bytes = max_bytes
        self._pinned = pinned
        self._num_bytes = 0
        self._loads: dict[int, StagedLoad] = {}
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes in use."""
        return self._num_bytes

    def begin(
        self,
        load_id: int,
        *,
        host_ids: tuple[int, ...] = (),
        num_pages: int,
        num_layers: int,
        layer_bytes: int,
    ) -> StagedLoad:
        """Make room for as many pages behind host_ids as fit; a load of the same id is dropped."""
        with self._lock:
            self._drop(load_id)
            page_bytes = num_layers * layer_bytes
            load = StagedLoad(
                load_id=load_id,
                num_room=min(num_pages, (self._max_bytes - self._num_bytes) // page_bytes),
                page_shape=(num_layers, layer_bytes),
                is_pinned=self._pinned,
                host_ids=host_ids,
            )
            self._loads[load_id] = load
            self._num_bytes += load.num_room * page_bytes
            return load

    def find(self, load_id: int) -> StagedLoad | None:
        """Return a load, if there is one of this id."""
        return self._loads.get(load_id)

    def wants(self, load: StagedLoad) -> bool:
        """Whether the load runs and more of its pages are wanted."""
        return self._loads.get(load.load_id) is load and load.num_pages is None

    def finish(self, load: StagedLoad) -> bool:
        """End a load with the pages that were read; return whether it ran until now.

        Without any it is forgotten at once.
        """
        with self._lock:
            if not self.wants(load):
                return False
            load.num_pages = load.num_read
            if not load.num_pages and not load.host_ids:
                self._drop(load.load_id)
            return True

    def take(self, load_id: int) -> StagedLoad | None:
        """Hand a load to the caller, with its ready pages, and forget it.

        None if there is no such load, or it still runs.
        """
        with self._lock:
            load = self._loads.get(load_id)
            if load is None or load.num_pages is None:
                return None
            self._drop(load_id)
            return load

    def drop(self, load_id: int) -> None:
        """Forget a load, whatever its state."""
        with self._lock:
            self._drop(load_id)

    def clear(self) -> None:
        """Forget all loads."""
        with self._lock:
            self._loads.clear()
            self._num_bytes = 0

    def _drop(self, load_id: int) -> None:
        load = self._loads.pop(load_id, None)
        if load is not None:
            self._num_bytes -= load.num_room * load.page_bytes


def _memory(shape: tuple[int, ...], *, pinned: bool) -> torch.Tensor:
    """Return memory with any contents; what is not pinned is of numpy, which asks for huge pages.

    The kernel maps those several times as fast.
    """
    if pinned:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(np.empty(shape, dtype=np.uint8))
