"""What the worker's shell needs from a model stage; test doubles implement it too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.logprobs import TokenLogprobs
from stage_worker.orders import Microbatch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What computes one kind of operation on a stage."""

    operation: str
    """Such as prefill attention."""
    name: str
    reason: str
    """Why it and nothing faster; empty if nothing is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageDescription:
    """What a stage is, as its worker says in Hello."""

    first_layer: int
    last_layer: int
    """One past the last layer."""
    model_layers: int
    hidden_size: int
    dtype: torch.dtype
    kv_bytes_per_token: int
    """In all layers of this stage."""
    layer_digests: tuple[bytes, ...]
    embedding_digest: bytes
    """Empty if not held."""
    head_digest: bytes
    """Empty if not held."""
    config_digest: bytes
    device: str
    """Where activations are, as torch has it, such as cuda:1."""
    hardware: str = "cpu"
    """What it computes on: cpu, or the name of a GPU."""
    backends: tuple[Backend, ...] = ()
    vocab_size: int | None = None
    """Token ids are below it; None if nothing says so."""
    chunk_alignment_tokens: int = 0
    """Chunks of a multiple of it keep all of the device busy; 0 if no length is better."""

    @property
    def num_layers(self) -> int:
        """Layers of this stage, >= 1."""
        return self.last_layer - self.first_layer

    @property
    def is_first(self) -> bool:
        """Whether the stage embeds tokens."""
        return self.first_layer == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage samples."""
        return self.last_layer == self.model_layers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageOutput:
    """What the last stage tells of a microbatch; empty on the others."""

    sampled_ids: tuple[int, ...] = ()
    """One for each sampling row."""
    sampled_logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each sampling row with top_logprobs, of one token."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of the microbatch's prompt_targets."""
    without_choice: tuple[int, ...] = ()
    """Indices of sampling rows whose logits leave nothing to choose; what is told of them means
    nothing."""


class Stage(Protocol):
    """Computes a contiguous layer range. But for read_page, methods run on the compute thread."""

    description: StageDescription

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Make the KV pool; keeps contents if the shape is unchanged. Drops all rows."""
        ...

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Run one microbatch.

        hidden_in_TD [T, D] is given except on the first stage and only read; hidden_out_TD [T, D]
        is given except on the last stage and receives the residual stream.
        """
        ...

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy whole pages inside the pool, in all layers."""
        ...

    def release(self, row: int) -> None:
        """Forget a request's row."""
        ...

    def page_layer_bytes(self) -> int:
        """Bytes of one page in one layer."""
        ...

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a page in one layer (absolute index) on the CPU, only to be read.

        The one method that any thread may call, while the page is pinned.
        """
        ...

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Fill a page in one layer from bytes of page_layer_bytes()."""
        ...
