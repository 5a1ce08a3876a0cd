"""What captured decode steps read and write: memory whose addresses stay as they are.

Everything is written and read in the order of one stream. While a step is replayed, the next one's
numbers may be asked for: their copy waits in the stream behind the replay, so it never overwrites
what that reads. On the host each step fills new pinned memory, which torch gives out again only
when its copy has been made. So no step waits for another, and none is seen half written.

Shapes: N rows of the largest step, D hidden size, V vocabulary, p pages of the pool.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from stage_worker.kernels.reference import PagedContexts, QueryRows
from stage_worker.paged.plan import PagedPlan
from stage_worker.paged.sequences import Sequences
from stage_worker.paged.tables import Ids
from stage_worker.paged.upload import Upload

_ROWS_UNIT = 4
"""Rows are of whole units, so that each row of numbers begins aligned to 16 bytes."""
_LONG_BYTES, _INT_BYTES = 8, 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """How large the memory is."""

    num_rows: int
    """Of the largest step."""
    num_pages: int
    """That a sequence may have."""
    filler_slot: int
    """Where rows that only fill up a step write; nobody's."""
    hidden_size: int
    vocab_size: int | None
    """None on a stage that samples nothing."""


class DecodeMemory:
    """Owner of the memory; filler rows see one key, of page 0 at first, and nobody sees them."""

    def __init__(self, limits: DecodeLimits, dtype: torch.dtype, device: torch.device) -> None:
        num_rows = -(-limits.num_rows // _ROWS_UNIT) * _ROWS_UNIT
        self._limits = limits
        self._device = device
        self._num_rows = num_rows
        self._block = torch.empty(
            num_rows * (3 * _LONG_BYTES + _INT_BYTES), dtype=torch.uint8, device=device
        )
        longs_3N, self._num_keys_N = _views(self._block, num_rows)
        self.token_ids_N, self.positions_N = longs_3N[0], longs_3N[1]
        self._slots_N = longs_3N[2]
        self._table_Np = torch.zeros(num_rows, limits.num_pages, dtype=torch.int32, device=device)
        self._sent_pages: tuple[Ids, ...] = ()
        """Of the first rows of the table; a row of a request that gets a page is a new array."""
        self._begins_N = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self.entered_ND = torch.zeros(num_rows, limits.hidden_size, dtype=dtype, device=device)
        """What the stage before computed."""
        self.hidden_ND = torch.zeros_like(self.entered_ND)
        """The residual stream."""
        self.logits_NV: torch.Tensor | None = None
        """Float32; None on a stage that samples nothing."""
        if limits.vocab_size is not None:
            shape = (num_rows, limits.vocab_size)
            self.logits_NV = torch.zeros(shape, dtype=torch.float32, device=device)
        self.chosen_N = torch.zeros(num_rows, dtype=torch.int64, device=device)
        """See likeliest_ids."""
        self._send_block(self._filler())

    def slots(self, size: int) -> torch.Tensor:
        """Return where the keys and values of so many rows go."""
        return self._slots_N[:size]

    def sequences(self, size: int) -> Sequences:
        """Return so many rows as a run; how many keys each has is known on the device only."""
        return Sequences(
            rows=slice(0, size),
            row_counts=(1,) * size,
            key_counts=(),
            query_rows=QueryRows(begins_B1=self._begins_N[: size + 1], longest=1),
            contexts=PagedContexts(
                page_table_Bp=self._table_Np[:size], num_keys_B=self._num_keys_N[:size]
            ),
        )

    def fill(
        self,
        plan: PagedPlan,
        token_ids_T: npt.NDArray[np.uint32] | None,
        hidden_in_TD: torch.Tensor | None,
    ) -> None:
        """Take a microbatch of single tokens; all further rows become filler. Waits for nothing."""
        (run,) = plan.runs
        num_rows = run.num_rows
        block = self._filler()
        longs_3N, num_keys_N = _views(block, self._num_rows)
        numbers_3N, keys_N = longs_3N.numpy(), num_keys_N.numpy()
        if token_ids_T is not None:
            numbers_3N[0, :num_rows] = token_ids_T
        numbers_3N[1, :num_rows] = plan.positions_T
        numbers_3N[2, :num_rows] = plan.slots_T
        keys_N[:num_rows] = run.key_counts
        self._send_block(block)
        if not self._holds(plan.page_ids):
            self._send_table(run.page_table_Bp)
            self._sent_pages = plan.page_ids
        if hidden_in_TD is not None:
            self.entered_ND[:num_rows].copy_(hidden_in_TD)

    def _holds(self, page_ids: tuple[Ids, ...]) -> bool:
        """Say whether the table begins with these rows, as it does from step to step mostly."""
        if len(page_ids) > len(self._sent_pages):
            return False
        pairs = zip(page_ids, self._sent_pages, strict=False)
        return all(pages is sent for pages, sent in pairs)

    def _send_table(self, page_table_Bp: Ids) -> None:
        upload = Upload()
        upload.add(page_table_Bp)
        [table_Bp] = upload.send(self._device)
        self._table_Np[: len(table_Bp), : table_Bp.shape[1]].copy_(table_Bp)

    def _filler(self) -> torch.Tensor:
        """Return a block of filler rows on the host."""
        block = torch.zeros(
            self._block.shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda"
        )
        longs_3N, num_keys_N = _views(block, self._num_rows)
        longs_3N[2].fill_(self._limits.filler_slot)
        num_keys_N.fill_(1)
        return block

    def _send_block(self, block: torch.Tensor) -> None:
        self._block.copy_(block, non_blocking=True)


def _views(block: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids, positions and slots [3, N] as int64, and numbers of keys [N] as int32."""
    num_long_bytes = 3 * _LONG_BYTES * num_rows
    longs_3N = block[:num_long_bytes].view(torch.int64).view(3, num_rows)
    return longs_3N, block[num_long_bytes:].view(torch.int32)
