"""The paged pool of keys and values of one stage, as paged kernels read it.

The bytes of a page that leave the pool are K then V, each [page_tokens, heads, head_dim], as on the
CPU; a latent is both and is there once.

Shapes: L layers of the stage, J planes (2, or 1 for latents), P pages, N tokens of a page, K kv
heads, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.kernels.reference import PagedKeysValues
from stage_worker.kv_pool import PoolShape


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
        self._side_stream = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if device.type == "cuda"
            else None
        )
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

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return a copy of a page's bytes in one layer (index in the stage).

        What wrote the page must have ended; any thread may call.
        """
        page = self._page(layer, page_id)
        if self._side_stream is None:
            return page.contiguous().view(torch.uint8).reshape(-1).numpy().copy()
        with torch.cuda.stream(self._side_stream):
            host = torch.empty(page.shape, dtype=page.dtype, pin_memory=True)
            host.copy_(page, non_blocking=True)
            self._side_stream.synchronize()
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
