"""What all layers share in one microbatch: positions, slots and sequences, on the device.

Shapes: T rows, n rows that are sampled, h half of what is turned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from stage_worker.kernels.reference import Angles
from stage_worker.orders import Microbatch
from stage_worker.paged.plan import PagedPlan, last_token_run
from stage_worker.paged.sequences import PendingSequences, Sequences
from stage_worker.paged.upload import Upload
from stage_worker.rope import inverse_frequencies
from stage_worker.rope_config import RopeConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LastRows:
    """The only rows that the rest of the last layer is computed for."""

    rows_n: torch.Tensor
    """int64."""
    runs: tuple[Sequences, ...]
    """Them as a run; empty if no row is read."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A microbatch on the device."""

    angles: Angles
    slots_T: torch.Tensor
    runs: tuple[Sequences, ...]
    token_ids_T: torch.Tensor | None
    """int64; first stage only."""
    unfilled_page_ids: torch.Tensor | None
    """int64; None if no page was handed out that this microbatch does not fill."""
    last: LastRows | None
    """None if all rows are read, or go on to the next stage."""


class PagedRope:
    """Knows a model's frequencies, on a device."""

    def __init__(self, config: RopeConfig, width: int, device: torch.device) -> None:
        self._inv_freq_h = inverse_frequencies(config, width).to(device)
        self._factor = config.attention_factor

    def angles(self, positions_T: torch.Tensor) -> Angles:
        """Return how far rows at these positions are turned."""
        angle_Th = positions_T.float()[:, None] * self._inv_freq_h
        return Angles(
            cos_Th=angle_Th.cos().mul_(self._factor), sin_Th=angle_Th.sin().mul_(self._factor)
        )


def place(
    microbatch: Microbatch,
    plan: PagedPlan,
    read_entries: Sequence[int] | None,
    rope: PagedRope,
    device: torch.device,
) -> Placed:
    """Carry a plan to a device, without waiting for it.

    read_entries are those whose last row alone is read behind the last layer; None reads all.
    """
    upload = Upload()
    positions, slots = upload.add(plan.positions_T), upload.add(plan.slots_T)
    pending = [PendingSequences(run, upload) for run in plan.runs]
    unfilled = None
    if plan.unfilled_page_ids.size:
        unfilled = upload.add(plan.unfilled_page_ids.astype(np.int64))
    ids = microbatch.token_ids
    token_ids = None if ids is None else upload.add(ids.astype(np.int64))
    last_rows, last_run = 0, None
    if read_entries is not None:
        rows_n = np.array([plan.places[entry].last_row for entry in read_entries], dtype=np.int64)
        last_rows = upload.add(rows_n)
        if read_entries:
            last_run = PendingSequences(last_token_run(plan, read_entries), upload)
    tensors = upload.send(device)
    last = None
    if read_entries is not None:
        last = LastRows(
            rows_n=tensors[last_rows],
            runs=() if last_run is None else (last_run.arrived(tensors),),
        )
    return Placed(
        angles=rope.angles(tensors[positions]),
        slots_T=tensors[slots],
        runs=tuple(run.arrived(tensors) for run in pending),
        token_ids_T=None if token_ids is None else tensors[token_ids],
        unfilled_page_ids=None if unfilled is None else tensors[unfilled],
        last=last,
    )
