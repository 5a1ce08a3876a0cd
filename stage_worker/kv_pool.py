"""The paged pool of keys and values of one stage, on the CPU.

Heads lie outside slots, so that the keys of a run are one dense matrix per head; attention over a
long context reads them a quarter faster so. The bytes of a page that leave the pool are K then V,
each [page_tokens, heads, head_dim], whatever the pool's own order. A latent is one head that is
both K and V, and is there once.

Shapes: L layers of the stage, P planes (or pages, of an index), H kv heads, S slots, D head_dim,
n tokens.
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
"""K and V of one layer, each [1, H, n, D]; the same memory if they are latents."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """How large a pool is and how it is cut."""

    num_layers: int
    num_planes: int
    """2 for keys and values, 1 for latents that are both."""
    num_kv_heads: int
    head_dim: int
    num_pages: int
    page_tokens: int

    @property
    def page_elements(self) -> int:
        """Numbers in one page of one layer, in all planes."""
        return self.num_planes * self.page_tokens * self.num_kv_heads * self.head_dim


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
        self._pool_LPHSD = torch.zeros(
            shape.num_layers,
            shape.num_planes,
            shape.num_kv_heads,
            shape.num_pages * shape.page_tokens,
            shape.head_dim,
            dtype=dtype,
        )

    def views(self, run: SlotRun) -> tuple[KeysValues, ...]:
        """Return views of a run in all layers."""
        run_LPHnD = self._pool_LPHSD[:, :, None, :, run.begin : run.end]
        planes = run_LPHnD.flatten(0, 1).unbind(0)
        step = self.shape.num_planes
        return tuple(zip(planes[0::step], planes[step - 1 :: step], strict=True))

    def gather(self, layer: int, page_index_P: torch.Tensor, tokens: slice) -> KeysValues:
        """Copy tokens of scattered pages of one layer (index in the stage) together."""
        heads, head_dim = self.shape.num_kv_heads, self.shape.head_dim
        paged = self._pool_LPHSD[layer].view(
            -1, heads, self.shape.num_pages, self.shape.page_tokens * head_dim
        )
        dense = paged.index_select(2, page_index_P).view(len(paged), 1, heads, -1, head_dim)
        k_1HnD = dense[0, :, :, tokens]
        return k_1HnD, k_1HnD if len(dense) == 1 else dense[1, :, :, tokens]

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy whole pages, in all layers; no target is a source."""
        num_tokens = self.shape.page_tokens
        for source, target in zip(source_ids, target_ids, strict=True):
            read, write = source * num_tokens, target * num_tokens
            page = self._pool_LPHSD[:, :, :, read : read + num_tokens]
            self._pool_LPHSD[:, :, :, write : write + num_tokens].copy_(page)

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return a page's bytes in one layer (index in the stage); a view where they lie together.

        That is so for latents; whoever keeps them longer than the page is pinned copies them.
        """
        page_PnHD = self._page(layer, page_id).transpose(1, 2).contiguous()
        return page_PnHD.view(torch.uint8).reshape(-1).numpy()

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Fill a page in one layer (index in the stage) from the bytes of read_page.

        Raises:
            InvariantViolated: data has another size than a page.
        """
        if data.nbytes != self.page_layer_bytes:
            raise InvariantViolated(f"{data.nbytes} bytes for a page of {self.page_layer_bytes}")
        page_PHnD = self._page(layer, page_id)
        owned = torch.from_numpy(np.array(data, dtype=np.uint8, copy=True).reshape(-1))
        page_PnHD = owned.view(page_PHnD.dtype).view(page_PHnD.transpose(1, 2).shape)
        page_PHnD.copy_(page_PnHD.transpose(1, 2))

    def _page(self, layer: int, page_id: int) -> torch.Tensor:
        if not 0 <= page_id < self.shape.num_pages:
            raise InvariantViolated(f"page {page_id}; the pool has {self.shape.num_pages}")
        begin = page_id * self.shape.page_tokens
        return self._pool_LPHSD[layer, :, :, begin : begin + self.shape.page_tokens]


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

    def latents(self, layer: int, begin: int, end: int) -> torch.Tensor:
        """Return tokens [begin, end) of a context of latents in one layer, [n, D].

        A view where they lie in one run, else a copy of no more than them and their pages.
        """
        if self._page_index is not None:
            page_tokens = self._pool.shape.page_tokens
            begin, end = self._tokens.start + begin, self._tokens.start + end
            first = begin // page_tokens
            pages = self._page_index[first : -(-end // page_tokens)]
            tokens = slice(begin - first * page_tokens, end - first * page_tokens)
            return self._pool.gather(layer, pages, tokens)[0][0, 0]
        found = []
        for keys, _ in self._layers[layer]:
            num_tokens = keys.shape[2]
            if begin < num_tokens and end > 0:
                found.append(keys[0, 0, max(begin, 0) : end])
            begin, end = begin - num_tokens, end - num_tokens
        return found[0] if len(found) == 1 else torch.cat(found)
