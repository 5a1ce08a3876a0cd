"""A stage of a real model over paged kernels: loads one layer range and runs microbatches.

The worker's compute thread owns it and launches; nothing waits for the device but sampling, and
whoever wants to know the end. It decides nothing about requests.

Shapes: T rows, D hidden size, n rows that are sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.kv_pool import PoolShape
from stage_worker.model_config import ModelConfig
from stage_worker.orders import Microbatch
from stage_worker.paged.decoder import DecoderLayer, run_layers
from stage_worker.paged.device_span import DeviceSpan
from stage_worker.paged.head import PagedHead
from stage_worker.paged.operations import Operations
from stage_worker.paged.placed import PagedRope, Placed, place
from stage_worker.paged.plan import PagedPlan, plan_pages
from stage_worker.paged.pool import PagedPool
from stage_worker.paged.tables import PageArrays
from stage_worker.readout import Readout, sampled_entries
from stage_worker.stage import StageDescription, StageOutput
from stage_worker.token_ids import checked_token_ids
from stage_worker.weights import StageWeights


class PagedStage:
    """Implements stage.Stage, LaunchingStage and CopyingStage on one device."""

    def __init__(
        self,
        config: ModelConfig,
        description: StageDescription,
        weights: StageWeights[DecoderLayer],
        operations: Operations,
    ) -> None:
        self.description = description
        self._config = config
        self._operations = operations
        self._device = operations.device
        self._embedding_VD = weights.embedding_VD
        self._layers = weights.layers
        self._readout: Readout | None = None
        if weights.head is not None:
            self._readout = Readout(PagedHead(weights.head, config.rms_norm_eps, operations))
        self._rope = PagedRope(config.rope, config.rope_dim, self._device)
        self._pool: PagedPool | None = None
        self._tables = PageArrays(num_pages=0, page_tokens=1)

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Make the KV pool; keeps contents if the shape is unchanged. Drops all rows."""
        if self._device.type == "cuda":
            # Kernels are launched on the current device of the thread, which is the compute thread.
            torch.cuda.set_device(self._device)
        self._tables = PageArrays(num_pages=num_pages, page_tokens=page_tokens)
        if self._readout is not None:
            self._readout.clear()
        shape = PoolShape(
            num_layers=self.description.num_layers,
            num_planes=self._config.num_planes,
            num_kv_heads=self._config.num_kv_heads,
            head_dim=self._config.head_dim,
            num_pages=num_pages,
            page_tokens=page_tokens,
        )
        if self._pool is None or self._pool.shape != shape:
            self._pool = None  # frees the old one first
            self._pool = PagedPool(shape, self.description.dtype, self._device)

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Run one microbatch and wait for it; see Stage.forward for the tensors.

        Raises:
            InvariantViolated: the order does not fit this stage, its pages or its vocabulary.
        """
        return self.launch(microbatch, hidden_in_TD, hidden_out_TD).wait().output

    @torch.no_grad()
    def launch(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> DeviceSpan:
        """Launch one microbatch; see LaunchingStage.launch. One that samples waits for its rows.

        Raises:
            InvariantViolated: see forward.
        """
        span = DeviceSpan(self._device)
        plan = plan_pages(microbatch, self._tables)
        pool = self._owned_pool()
        placed = self._place(microbatch, plan)
        if placed.unfilled_page_ids is not None:
            pool.clear(placed.unfilled_page_ids)
        hidden_TD = hidden_out_TD
        if hidden_TD is None:
            shape = (microbatch.num_tokens, self.description.hidden_size)
            hidden_TD = self._operations.scratch.take("hidden", shape, self.description.dtype)
        self._enter(microbatch, placed, hidden_in_TD, hidden_TD)
        read_TD = run_layers(self._layers, pool.layers, hidden_TD, placed)
        output = StageOutput()
        if self._readout is not None:
            output = self._readout.read(microbatch, plan.places, read_TD)
        span.end(output)
        return span

    def _place(self, microbatch: Microbatch, plan: PagedPlan) -> Placed:
        """Carry what the layers share to the device."""
        read_entries: list[int] | None = None
        if self._readout is not None:
            entries = sampled_entries(microbatch)
            if not microbatch.prompt_targets:
                read_entries = entries
        return place(microbatch, plan, read_entries, self._rope, self._device)

    def _enter(
        self,
        microbatch: Microbatch,
        placed: Placed,
        hidden_in_TD: torch.Tensor | None,
        hidden_TD: torch.Tensor,
    ) -> None:
        """Fill the residual stream from token ids or from the stage before."""
        if self._embedding_VD is None:
            if hidden_in_TD is None:
                raise InvariantViolated("no activation for a stage behind the first")
            hidden_TD.copy_(hidden_in_TD)
            return
        checked_token_ids(microbatch, self._config.vocab_size)
        assert placed.token_ids_T is not None, "ids that are there are placed"
        torch.index_select(self._embedding_VD, 0, placed.token_ids_T, out=hidden_TD)

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

    def save_pages(self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]) -> None:
        """Copy whole pages to host memory; see CopyingStage."""
        self._owned_pool().save_pages(page_ids, pages)

    def wait_saved(self) -> None:
        """See CopyingStage."""
        self._owned_pool().wait_saved()

    def restore_pages(
        self, page_ids: Sequence[int], pages: Sequence[torch.Tensor]
    ) -> Callable[[], float]:
        """Copy whole pages from host memory; see CopyingStage."""
        return self._owned_pool().restore_pages(page_ids, pages)

    def _owned_pool(self) -> PagedPool:
        if self._pool is None:
            raise InvariantViolated("the pages were not allocated")
        return self._pool
