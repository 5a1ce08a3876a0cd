"""A stage of a real model: loads one layer range and runs microbatches through it.

The worker's compute thread owns it. It decides nothing about requests: it does what a microbatch
says, writes K and V into the pages that it is told, and forgets rows when it is told.

Shapes: T rows, D hidden size, n rows that are sampled, V vocabulary.
"""

from __future__ import annotations

import pathlib

import numpy as np
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.batch import BatchPlan, plan_batch
from stage_worker.decoder import Decoder
from stage_worker.element_type import DtypeChoice, choose_dtype
from stage_worker.head import Head
from stage_worker.kv_pool import KvPool, PoolShape
from stage_worker.layer_weights import LayerWeights, lay_out
from stage_worker.loading import describe, read_config
from stage_worker.model_config import ModelConfig
from stage_worker.orders import Microbatch
from stage_worker.page_table import PageTables
from stage_worker.pooled_stage import PooledStage
from stage_worker.readout import Readout, sampled_entries
from stage_worker.rope import Rope
from stage_worker.stage import Backend, StageDescription, StageOutput
from stage_worker.step import LastRowsStep, Step
from stage_worker.token_ids import checked_token_ids
from stage_worker.weight_choice import STORED, WeightChoice
from stage_worker.weights import (
    Layout,
    Progress,
    StageWeights,
    load_weights,
    own_dtype,
)
from stage_worker.workspace import Workspace

_BACKENDS = tuple(
    Backend(operation=operation, name="torch on the CPU", reason="")
    for operation in ("prefill attention", "decode attention", "matrix products")
)


class ModelStage(PooledStage[KvPool, PageTables]):
    """Implements stage.Stage with torch on the CPU."""

    def __init__(
        self,
        config: ModelConfig,
        description: StageDescription,
        weights: StageWeights[LayerWeights],
        num_threads: int,
    ) -> None:
        readout = None
        if weights.head is not None:
            readout = Readout(Head(weights.head, config.rms_norm_eps))
        super().__init__(description, PageTables(num_pages=0, page_tokens=1), readout)
        self._config = config
        self._num_threads = num_threads
        self._embedding_VD = weights.embedding_VD
        self._decoder = Decoder(weights.layers, config)
        self._rope = Rope(config.rope, config.rope_dim)
        self._workspace = Workspace(config, description.dtype)

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Make the KV pool; keeps contents if the shape is unchanged. Drops all rows."""
        # OpenMP counts threads for each calling thread; this one is the compute thread.
        torch.set_num_threads(self._num_threads)
        self._tables = PageTables(num_pages=num_pages, page_tokens=page_tokens)
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
            self._workspace = Workspace(self._config, self.description.dtype)
            layers = slice(self.description.first_layer, self.description.last_layer)
            windows = self._config.windows[layers]
            self._pool = KvPool(shape, self.description.dtype, windows)

    @torch.inference_mode()
    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Run one microbatch; see Stage.forward for the tensors.

        Raises:
            InvariantViolated: the order does not fit this stage, its pages or its vocabulary.
        """
        plan = plan_batch(microbatch, self._tables)
        buffers = self._workspace.rows(microbatch.num_tokens)
        hidden_TD = buffers.hidden_TD if hidden_out_TD is None else hidden_out_TD
        self._enter(microbatch, hidden_in_TD, hidden_TD)
        step = Step(plan, buffers, self._rope, self._owned_pool(), self._config.latent)
        if self._readout is None:
            self._decoder.run(hidden_TD, step, None)
            return StageOutput()
        return self._sample(microbatch, plan, hidden_TD, step, self._readout)

    def _enter(
        self, microbatch: Microbatch, hidden_in_TD: torch.Tensor | None, hidden_TD: torch.Tensor
    ) -> None:
        """Fill the residual stream from token ids or from the stage before."""
        if self._embedding_VD is None:
            if hidden_in_TD is None:
                raise InvariantViolated("no activation for a stage behind the first")
            hidden_TD.copy_(hidden_in_TD)
            return
        ids = checked_token_ids(microbatch, self._config.vocab_size)
        index_T = torch.from_numpy(ids.astype(np.int64))
        torch.index_select(self._embedding_VD, 0, index_T, out=hidden_TD)

    def _sample(
        self,
        microbatch: Microbatch,
        plan: BatchPlan,
        hidden_TD: torch.Tensor,
        step: Step,
        readout: Readout,
    ) -> StageOutput:
        """Run the layers, the last one only for rows that are read, then the readout."""
        entries = sampled_entries(microbatch)
        last_rows = None
        if not microbatch.prompt_targets and len(entries) < microbatch.num_tokens:
            parts = tuple(plan.parts[entry] for entry in entries)
            last_rows = LastRowsStep(parts, self._workspace.rows(len(entries)), self._owned_pool())
        hidden_nD = self._decoder.run(hidden_TD, step, last_rows)
        return readout.read(microbatch, plan.parts, hidden_nD)


def load_stage(
    model_path: pathlib.Path,
    *,
    layers: range,
    dtype: DtypeChoice = "auto",
    num_threads: int = 1,
    choice: WeightChoice = STORED,
    progress: Progress = lambda _done, _total: None,
) -> ModelStage:
    """Load layers [layers.start, layers.stop) of a model folder; blocks for seconds.

    Sets torch's thread count of the whole process. progress is called from this thread with parts
    loaded and parts in all.

    Raises:
        ConfigError: the range is not in the model, or the folder cannot be served.
    """
    model = choice.served(read_config(model_path, layers))
    config = model.config
    own = own_dtype(model_path, config, first_layer=layers.start, load_format=choice.load_format)
    compute_dtype = choose_dtype(dtype, own=own, declared=config.dtype)
    torch.set_num_threads(num_threads)
    device = torch.device("cpu")
    weights = load_weights(
        model_path,
        model,
        layers=layers,
        layout=Layout(
            dtype=compute_dtype,
            device=device,
            lay_out=lambda raw, config: lay_out(raw, config, compute_dtype),
        ),
        load_format=choice.load_format,
        progress=progress,
    )
    description = describe(
        config,
        layers,
        weights,
        dtype=compute_dtype,
        device=device,
        backends=(*_BACKENDS, *model.backends()),
    )
    return ModelStage(config, description, weights, num_threads)
