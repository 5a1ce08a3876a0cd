"""Decode steps that are captured once and replayed: a launch of all layers instead of hundreds.

A step of a few rows keeps the host busy for longer than the GPU. As a CUDA graph it is one launch;
what changes from step to step is read from decode_memory.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from stage_worker.model_config import ModelConfig
from stage_worker.orders import Microbatch
from stage_worker.paged.attention import TorchAttention
from stage_worker.paged.ladder import fitting, ladder
from stage_worker.paged.operations import Operations
from stage_worker.paged.scratch import Pieces, Scratch

Step = Callable[[int], None]
"""Computes a decode step of so many rows from memory that stays where it is, to such memory."""


class Recorder(Protocol):
    """Makes replays of what is launched."""

    def renew(self) -> None:
        """Begin a set of records, of which one at a time is replayed; the one before is gone."""
        ...

    def rehearse(self, step: Callable[[], None]) -> None:
        """Run a step as it will be recorded, so that all it needs is compiled and allocated.

        Raises:
            RuntimeError: it waits for the device, which no replay can.
        """
        ...

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return what launches the same again, on the current stream."""
        ...


class CudaRecorder:
    """Implements Recorder by CUDA graphs; those of a set share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """Of rehearsals and captures: what libraries keep for a stream is kept once."""
        self._pool: Any = None
        self._has_watched = False
        """Whether a rehearsal was watched; later ones wait for the device no more than that."""

    def renew(self) -> None:
        """See Recorder."""
        self._pool = None

    def rehearse(self, step: Callable[[], None]) -> None:
        """See Recorder."""
        self._on_stream(step)
        torch.cuda.synchronize()
        if not self._has_watched:
            with _no_waiting():
                self._on_stream(step)
            self._has_watched = True
            torch.cuda.synchronize()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """See Recorder; other threads may use the GPU meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            step()
        self._pool = graph.pool()
        return graph.replay

    def _on_stream(self, step: Callable[[], None]) -> None:
        launching = torch.cuda.current_stream()
        self._stream.wait_stream(launching)
        with torch.cuda.stream(self._stream):
            step()
        launching.wait_stream(self._stream)


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Let what waits for the device fail inside the context."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not all that waits is found
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class DecodeGraphs:
    """The replays of one pool of pages, by the number of their rows."""

    def __init__(self, step: Step, most_rows: int, scratch: Scratch, recorder: Recorder) -> None:
        """Record a step for each size; blocks for about a second.

        All sizes are rehearsed before the first is recorded, so that no piece of scratch memory
        grows, and moves, when its address is known already. The largest is recorded first: the
        smaller ones find their memory in its pool.

        Raises:
            RuntimeError: see Recorder.
        """
        self._sizes = ladder(most_rows)
        self._replays: dict[int, Callable[[], None]] = {}
        self._pieces = Pieces()
        recorder.renew()
        with torch.no_grad(), scratch.using(self._pieces):
            for size in reversed(self._sizes):
                recorder.rehearse(functools.partial(step, size))
            self._pieces.is_fixed = True
            for size in reversed(self._sizes):
                self._replays[size] = recorder.record(functools.partial(step, size))

    def size_of(self, microbatch: Microbatch) -> int | None:
        """Return the size whose replay computes a microbatch, or None.

        None has chunks, prompt targets or too many rows.
        """
        if microbatch.prompt_targets or any(each.num_tokens > 1 for each in microbatch.entries):
            return None
        return fitting(self._sizes, len(microbatch.entries))

    def replay(self, size: int) -> None:
        """Launch the step of a size."""
        self._replays[size]()


def why_not_replayed(config: ModelConfig, operations: Operations) -> Iterator[str]:
    """Yield why decode steps of a model are launched kernel by kernel.

    That something else in them waits for the device is found by rehearsing one.
    """
    if isinstance(operations.decode, TorchAttention):
        yield "decode attention in plain torch counts keys on the host"
    if any(window is not None for window in config.windows):
        yield "attention of limited reach counts keys on the host"
