"""A stage of a real model over paged kernels: loads one layer range and runs microbatches.

The worker's compute thread owns it and launches; nothing waits for the device but sampling by more
than the largest logit, and whoever wants to know the end. Microbatches of single tokens are
replayed where that was asked for and can be. It decides nothing about requests.

Shapes: T rows, D hidden size, n rows that are sampled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import structlog
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.kv_pool import PoolShape
from stage_worker.model_config import ModelConfig
from stage_worker.orders import Microbatch
from stage_worker.paged.decode_graphs import Recorder, why_not_replayed
from stage_worker.paged.decode_replay import DecodeReplay
from stage_worker.paged.decode_step import PagedModel
from stage_worker.paged.decoder import DecoderLayer, run_layers
from stage_worker.paged.device_span import DeviceSpan
from stage_worker.paged.greedy import ChosenIds, is_greedy, likeliest_ids
from stage_worker.paged.head import PagedHead
from stage_worker.paged.operations import Operations
from stage_worker.paged.placed import PagedRope, Placed, place
from stage_worker.paged.plan import PagedPlan, plan_pages
from stage_worker.paged.pool import PagedPool
from stage_worker.paged.row_parts import row_counts
from stage_worker.paged.tables import PageArrays
from stage_worker.pooled_stage import PooledStage
from stage_worker.readout import Readout, places, sampled_entries
from stage_worker.stage import Backend, StageDescription, StageOutput
from stage_worker.token_ids import checked_token_ids
from stage_worker.weights import StageWeights

_log = structlog.get_logger(__name__)
_TRIED_PAGES, _TRIED_PAGE_TOKENS = 2, 128
"""Of the pool that a first replay is tried on."""
_NOT_WANTED = "no rows are to be replayed"
_LEAST_PAGES = 2
"""A smaller pool is one that was given up, and nothing is recorded for it."""


class PagedStage(PooledStage[PagedPool, PageArrays]):
    """Implements stage.Stage, LaunchingStage and CopyingStage on one device."""

    def __init__(
        self,
        config: ModelConfig,
        description: StageDescription,
        weights: StageWeights[DecoderLayer],
        operations: Operations,
    ) -> None:
        head = None
        if weights.head is not None:
            head = PagedHead(weights.head, config.rms_norm_eps, operations)
        readout = None if head is None else Readout(head)
        super().__init__(description, PageArrays(num_pages=0, page_tokens=1), readout)
        self._config = config
        self._operations = operations
        self._device = operations.device
        self._layers = weights.layers
        self._model = PagedModel(
            embedding_VD=weights.embedding_VD,
            layers=self._layers,
            head=head,
            rope=PagedRope(config.rope, config.rope_dim, self._device),
            hidden_size=config.hidden_size,
        )
        self._recorder: Recorder | None = None
        """None where microbatches are not replayed."""
        self._most_replayed = 0
        """Rows of the largest microbatch that is replayed."""
        self._replay: DecodeReplay | None = None
        """Of the pool that is there now."""

    def compiled_rows(self, most_rows: int) -> tuple[int, ...]:
        """Return the sizes of chunks, up to most_rows, that products have kernels of their own for.

        Empty where torch multiplies.
        """
        return row_counts(most_rows) if self._operations.has_block_gemm else ()

    def use_replays(self, most_rows: int, recorder: Recorder) -> None:
        """Replay single tokens, up to most_rows of them, if that is wanted and possible; says so.

        One is tried; the others are recorded whenever a pool is made. Blocks for seconds, as
        kernels are compiled, and drops the pool.
        """
        reason = _NOT_WANTED
        if most_rows:
            reason = next(why_not_replayed(self._config, self._operations), "")
        if not reason:
            self._recorder, self._most_replayed = recorder, 1
            try:
                self.allocate(num_pages=_TRIED_PAGES, page_tokens=_TRIED_PAGE_TOKENS)
            except RuntimeError as error:
                reason = f"recording failed: {error}".partition("\n")[0]
                self._recorder = None
            self._most_replayed = most_rows
            self.allocate(num_pages=1, page_tokens=1)
        name = "one by one" if reason else f"CUDA graphs up to {most_rows} rows"
        chosen = Backend(operation="decode launches", name=name, reason=reason)
        self.description = dataclasses.replace(
            self.description, backends=(*self.description.backends, chosen)
        )
        tell = _log.warning if reason not in {"", _NOT_WANTED} else _log.info
        tell("back end chosen", operation=chosen.operation, name=name, reason=reason)

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
            self._replay = self._pool = None  # frees the old ones first
            self._pool = PagedPool(shape, self.description.dtype, self._device)
            self._record()

    def _record(self) -> None:
        """Record what is replayed on the pool, if anything is."""
        pool = self._owned_pool()
        if self._recorder is None or pool.shape.num_pages < _LEAST_PAGES:
            return
        self._replay = DecodeReplay(
            self._model, pool, self._most_replayed, self._operations, self._recorder
        )

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
        """Launch one microbatch; see LaunchingStage.launch.

        One that samples by more than the largest logit waits for its rows.

        Raises:
            InvariantViolated: see forward.
        """
        if self._model.embedding_VD is not None:
            checked_token_ids(microbatch, self._config.vocab_size)
        elif hidden_in_TD is None:
            raise InvariantViolated("no activation for a stage behind the first")
        span = DeviceSpan(self._device)
        plan = plan_pages(microbatch, self._tables)
        size = None if self._replay is None else self._replay.size_of(microbatch)
        if self._replay is None or size is None:
            span.end(self._run(microbatch, plan, hidden_in_TD, hidden_out_TD))
            return span
        self._replay.run(size, microbatch, plan, hidden_in_TD)
        if hidden_out_TD is not None:
            hidden_out_TD.copy_(self._replay.hidden(microbatch.num_tokens))
        span.end(self._read_replayed(microbatch, self._replay))
        return span

    def _run(
        self,
        microbatch: Microbatch,
        plan: PagedPlan,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> Callable[[], StageOutput]:
        """Launch kernel by kernel; return what tells the output once the device has ended."""
        pool = self._owned_pool()
        placed = self._place(microbatch, plan)
        if placed.unfilled_page_ids is not None:
            pool.clear(placed.unfilled_page_ids)
        hidden_TD = hidden_out_TD
        if hidden_TD is None:
            shape = (microbatch.num_tokens, self.description.hidden_size)
            hidden_TD = self._operations.scratch.take("hidden", shape, self.description.dtype)
        self._enter(placed, hidden_in_TD, hidden_TD)
        read_TD = run_layers(self._layers, pool.layers, hidden_TD, placed)
        return self._read(microbatch, plan, read_TD)

    def _read(
        self, microbatch: Microbatch, plan: PagedPlan, read_TD: torch.Tensor
    ) -> Callable[[], StageOutput]:
        """Sample what is behind the last layer, or begin to."""
        if self._readout is None or self._model.head is None:
            return StageOutput
        if microbatch.sampling and is_greedy(microbatch):
            ids_n = likeliest_ids(self._model.head.logits(read_TD))
            return ChosenIds(ids_n, places(microbatch, sampled_entries(microbatch))).output
        output = self._readout.read(microbatch, plan.places, read_TD)
        return lambda: output

    def _read_replayed(
        self, microbatch: Microbatch, replay: DecodeReplay
    ) -> Callable[[], StageOutput]:
        """Do the same with what a replay leaves: logits of all rows, and the likeliest ids."""
        if self._readout is None or not sampled_entries(microbatch):
            return StageOutput
        rows = [row.entry for row in microbatch.sampling]
        num_rows = microbatch.num_tokens
        if is_greedy(microbatch):
            return ChosenIds(replay.chosen(num_rows), rows).output
        output = self._readout.choose(microbatch, replay.logits(num_rows), rows)
        return lambda: output

    def _place(self, microbatch: Microbatch, plan: PagedPlan) -> Placed:
        """Carry what the layers share to the device."""
        read_entries: list[int] | None = None
        if self._readout is not None:
            entries = sampled_entries(microbatch)
            if not microbatch.prompt_targets:
                read_entries = entries
        return place(microbatch, plan, read_entries, self._model.rope, self._device)

    def _enter(
        self, placed: Placed, hidden_in_TD: torch.Tensor | None, hidden_TD: torch.Tensor
    ) -> None:
        """Fill the residual stream from token ids or from the stage before."""
        if self._model.embedding_VD is None:
            assert hidden_in_TD is not None, "launch has looked"
            hidden_TD.copy_(hidden_in_TD)
            return
        assert placed.token_ids_T is not None, "ids that are there are placed"
        torch.index_select(self._model.embedding_VD, 0, placed.token_ids_T, out=hidden_TD)

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
