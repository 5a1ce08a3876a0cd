"""The paged pool of keys and values of one stage, as paged kernels read it.

The bytes of a page that leave the pool are K then V, each [page_tokens, heads, head_dim], as on the
CPU; a latent is both and is there once.

Shapes: L layers of the stage, J planes (2, or 1 for latents), P pages, N tokens of a page, K kv
heads, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.kernels.reference import PagedKeysValues
from stage_worker.kv_pool import PoolShape
from stage_worker.paged.device_span import DeviceSpan
from stage_worker.stage import StageOutput


class _Side:
    """A GPU's stream for copies to the host, and what it and the compute stream tell each other."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.saved = torch.cuda.Event()  # type: ignore[no-untyped-call]
        """Behind the last copies of whole pages to host memory."""
        self.restored = torch.cuda.Event()  # type: ignore[no-untyped-call]
        """Behind the last copies of whole pages from there."""


class PagedPool:
    """Owns the memory of all pages; only the compute thread writes it."""

    def __init__(self, shape: PoolShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.page_layer_bytes = shape.page_elements * dtype.itemsize
        self._pool_LJPNKd = torch.zeros(
            shape.num_layers,
            shape.num_planes,
            shape.num_pages + 1,
            shape.page_tokens,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=dtype,
            device=device,
        )
        planes = self._pool_LJPNKd
        self.layers = tuple(
            PagedKeysValues(k_PNKd=planes[layer, 0], v_PNKd=planes[layer, -1])
            for layer in range(shape.num_layers)
        )
        """Keys and values of each layer; the same memory if they are latents."""
        self.filler_slot = shape.num_pages * shape.page_tokens
        """The first of a page of nobody's; rows that only fill up a batch write there."""
        self._side = _Side(device) if device.type == "cuda" else None
        """Copies of pages to the host; they do not wait for the compute stream."""

    def clear(self, page_ids_n: torch.Tensor) -> None:
        """Make the contents of pages zeros, in all layers; the ids are on the device.

        Kernels multiply what lies behind a sequence's last key by zero, and what a request left
        there that the model's weights broke may be no number.
        """
        self._pool_LJPNKd.index_fill_(2, page_ids_n, 0.0)

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy whole pages, in all layers; no target is a source."""
        for source, target in zip(source_ids, target_ids, strict=True):
            self._pool_LJPNKd[:, :, target].copy_(self._pool_LJPNKd[:, :, source])

    def save_pages(self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]) -> None:
        """Copy whole pages to host memory, each [layers, bytes] as read_page has them.

        What wrote the pages must have ended. On a GPU the memory is pinned, and what this thread
        launches later waits for the copies, which wait only for the last copies from host memory.
        """
        side = self._side
        if side is None:
            self._copy_out(page_ids, pages)
            return
        side.stream.wait_event(side.restored)
        with torch.cuda.stream(side.stream):
            self._copy_out(page_ids, pages)
            side.saved.record()
        torch.cuda.current_stream(self._pool_LJPNKd.device).wait_event(side.saved)

    def wait_saved(self) -> None:
        """Block until all that was saved is in host memory."""
        if self._side is not None:
            self._side.saved.synchronize()

    def restore_pages(
        self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]
    ) -> Callable[[], float]:
        """Fill whole pages from host memory that save_pages has filled, in the order of the stream.

        Tells how long that took, once something launched later has ended.
        """
        span = DeviceSpan(self._pool_LJPNKd.device)
        for page_id, page in zip(page_ids, pages, strict=True):
            target = self._pool_LJPNKd[:, :, page_id]
            target.copy_(page.view(target.dtype).view(target.shape), non_blocking=True)
        span.end(StageOutput)
        if self._side is not None:
            self._side.restored.record()
        return span.took_s

    def _copy_out(self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]) -> None:
        for page_id, page in zip(page_ids, pages, strict=True):
            source = self._pool_LJPNKd[:, :, page_id]
            page.view(source.dtype).view(source.shape).copy_(source, non_blocking=True)

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return a copy of a page's bytes in one layer (index in the stage).

        What wrote the page must have ended; any thread may call.
        """
        page = self._page(layer, page_id)
        if self._side is None:
            return page.contiguous().view(torch.uint8).reshape(-1).numpy().copy()
        with torch.cuda.stream(self._side.stream):
            host = torch.empty(page.shape, dtype=page.dtype, pin_memory=True)
            host.copy_(page, non_blocking=True)
            self._side.stream.synchronize()
        data: npt.NDArray[np.uint8] = host.view(torch.uint8).reshape(-1).numpy()
        return data

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Fill a page in one layer (index in the stage) from the bytes of read_page.

        Raises:
            InvariantViolated: data has another size than a page.
        """
        if data.nbytes != self.page_layer_bytes:
            raise InvariantViolated(f"{data.nbytes} bytes for a page of {self.page_layer_bytes}")
        page = self._page(layer, page_id)
        owned = torch.from_numpy(np.array(data, dtype=np.uint8, copy=True).reshape(-1))
        page.copy_(owned.view(page.dtype).view(page.shape))

    def _page(self, layer: int, page_id: int) -> torch.Tensor:
        if not 0 <= page_id < self.shape.num_pages:
            raise InvariantViolated(f"page {page_id}; the pool has {self.shape.num_pages}")
        return self._pool_LJPNKd[layer, :, page_id]
