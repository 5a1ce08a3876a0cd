"""The paged pool of keys and values of one stage, on the CPU.

Heads lie outside slots, so that the keys of a run are one dense matrix per head; attention over a
long context reads them a quarter faster so. The bytes of a page that leave the pool are K then V,
each [page_tokens, heads, head_dim], whatever the pool's own order.

Shapes: L layers of the stage, H kv heads, S slots, P pages, D head_dim, n tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.batch import Context
from stage_worker.page_table import SlotRun

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""K and V of one layer, each [1, H, n, D]."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """How large a pool is and how it is cut."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_pages: int
    page_tokens: int

    @property
    def page_elements(self) -> int:
        """Numbers in one page of one layer, keys and values."""
        return 2 * self.page_tokens * self.num_kv_heads * self.head_dim


class KvPool:
    """Owns the memory of all pages; only the compute thread writes it.

    windows says for each layer how many positions a query sees of it; None is all.
    """

    def __init__(
        self, shape: PoolShape, dtype: torch.dtype, windows: tuple[int | None, ...]
    ) -> None:
        self.shape = shape
        self.windows = windows
        self.page_layer_bytes = shape.page_elements * dtype.itemsize
        self._pool_L2HSD = torch.zeros(
            shape.num_layers,
            2,
            shape.num_kv_heads,
            shape.num_pages * shape.page_tokens,
            shape.head_dim,
            dtype=dtype,
        )

    def views(self, run: SlotRun) -> tuple[KeysValues, ...]:
        """Return views of a run in all layers."""
        run_2LHnD = self._pool_L2HSD[:, :, None, :, run.begin : run.end].flatten(0, 1).unbind(0)
        return tuple(zip(run_2LHnD[0::2], run_2LHnD[1::2], strict=True))

    def gather(self, layer: int, page_index_P: torch.Tensor, tokens: slice) -> KeysValues:
        """Copy tokens of scattered pages of one layer (index in the stage) together."""
        heads, head_dim = self.shape.num_kv_heads, self.shape.head_dim
        paged = self._pool_L2HSD[layer].view(2, heads, self.shape.num_pages, -1)
        dense = paged.index_select(2, page_index_P).view(2, 1, heads, -1, head_dim)
        return dense[0, :, :, tokens], dense[1, :, :, tokens]

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return a copy of a page's bytes in one layer (index in the stage)."""
        page_2nHD = self._page(layer, page_id).transpose(1, 2).contiguous()
        return page_2nHD.view(torch.uint8).reshape(-1).numpy()

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Fill a page in one layer (index in the stage) from the bytes of read_page.

        Raises:
            InvariantViolated: data has another size than a page.
        """
        if data.nbytes != self.page_layer_bytes:
            raise InvariantViolated(f"{data.nbytes} bytes for a page of {self.page_layer_bytes}")
        page_2HnD = self._page(layer, page_id)
        owned = torch.from_numpy(np.array(data, dtype=np.uint8, copy=True).reshape(-1))
        page_2nHD = owned.view(page_2HnD.dtype).view(page_2HnD.transpose(1, 2).shape)
        page_2HnD.copy_(page_2nHD.transpose(1, 2))

    def _page(self, layer: int, page_id: int) -> torch.Tensor:
        if not 0 <= page_id < self.shape.num_pages:
            raise InvariantViolated(f"page {page_id}; the pool has {self.shape.num_pages}")
        begin = page_id * self.shape.page_tokens
        return self._pool_L2HSD[layer, :, :, begin : begin + self.shape.page_tokens]


class ContextReader:
    """Hands out the keys and values of one context, layer by layer."""

    def __init__(self, pool: KvPool, context: Context) -> None:
        self._pool = pool
        skipped = context.skipped_tokens
        self._tokens = slice(skipped, skipped + context.num_tokens)
        self._page_index: torch.Tensor | None = None
        self._layers: tuple[Sequence[KeysValues], ...] = ()
        if context.page_ids:
            self._page_index = torch.tensor(context.page_ids)
        else:
            by_run = [pool.views(run) for run in context.runs]
            self._layers = tuple(zip(*by_run, strict=True))

    def segments(self, layer: int) -> Sequence[KeysValues]:
        """Return the context's keys and values in one layer, in one piece or several."""
        if self._page_index is None:
            return self._layers[layer]
        return (self._pool.gather(layer, self._page_index, self._tokens),)
