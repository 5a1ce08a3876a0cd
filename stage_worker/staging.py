"""Memory that loaded pages wait in until the compute thread takes them. Any thread may call."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np

from chunkmesh.page_record import Bytes


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class StagedLoad:
    """Room for the leading pages of one load."""

    load_id: int
    pages: Bytes
    """[pages, layers, layer_bytes]; written by one I/O thread until done."""
    host_ids: tuple[int, ...] = ()
    """Host pages that lie before those."""
    num_read: int = 0
    """Leading pages that were read so far; counted by that thread."""
    num_pages: int | None = None
    """Pages that are ready; None while the load runs."""

    @property
    def ready(self) -> Bytes:
        """The pages that are ready, of a load that has ended."""
        return self.pages[: self.num_pages or 0]


class Staging:
    """Owner of all staged loads and of their bound."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
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
            num_pages = min(num_pages, (self._max_bytes - self._num_bytes) // page_bytes)
            load = StagedLoad(
                load_id=load_id,
                pages=np.empty((num_pages, num_layers, layer_bytes), dtype=np.uint8),
                host_ids=host_ids,
            )
            self._loads[load_id] = load
            self._num_bytes += load.pages.nbytes
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
            self._num_bytes -= load.pages.nbytes
