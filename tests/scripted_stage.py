"""SCRIPT: a stage without weights whose last stage plays given token ids.

Requests are told apart by their seed. Every stage checks what a real one relies on: rows and page
tables grow as they should, activations are those of the stage before, no page has two rows.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from stage_worker.orders import Microbatch
from stage_worker.stage import StageDescription, StageOutput

HIDDEN = 8


@dataclasses.dataclass(slots=True, kw_only=True)
class Script:
    """What the last stage plays; shared by the stages of one mesh."""

    ids: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    """Seed -> ids by output position; behind the end, `otherwise`."""
    otherwise: int = 65
    delay_s: float = 0.0
    """Of each forward of the last stage."""


class ScriptedStage:
    """Implements stage_worker.stage.Stage."""

    def __init__(self, first: int, last: int, model_layers: int, script: Script) -> None:
        self.description = StageDescription(
            first_layer=first,
            last_layer=last,
            model_layers=model_layers,
            hidden_size=HIDDEN,
            dtype=torch.float32,
            kv_bytes_per_token=16 * (last - first),
            layer_digests=tuple(bytes([layer]) * 16 for layer in range(first, last)),
            embedding_digest=b"e" if first == 0 else b"",
            head_digest=b"h" if last == model_layers else b"",
            config_digest=b"c",
            device="cpu",
        )
        self.microbatches: list[Microbatch] = []
        """All that ran, in order."""
        self.tables: dict[int, list[int]] = {}
        """Row -> page ids."""
        self.lengths: dict[int, int] = {}
        """Row -> tokens computed."""
        self.ran = threading.Condition()
        """Notified after every forward."""
        self._script = script
        self._page_tokens = 0
        self._num_pages = 0
        self._pages: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Begin with no rows."""
        self._num_pages, self._page_tokens = num_pages, page_tokens
        self.tables.clear()
        self.lengths.clear()

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Check everything, and on the last stage play the script."""
        first, last = self.description.is_first, self.description.is_last
        assert (microbatch.token_ids is not None) == first
        assert (hidden_in_TD is None) == first
        assert (hidden_out_TD is None) == last
        positions = self._grow(microbatch)
        stamp = torch.from_numpy(positions).to(torch.float32)
        if hidden_in_TD is not None:
            assert torch.equal(hidden_in_TD[:, 0], stamp), "not the activation of this microbatch"
        if hidden_out_TD is not None:
            hidden_out_TD.copy_(stamp[:, None].expand(-1, HIDDEN))
        sampled: tuple[int, ...] = ()
        if last:
            time.sleep(self._script.delay_s)
            sampled = tuple(self._play(row.seed, row.position) for row in microbatch.sampling)
        with self.ran:
            self.microbatches.append(microbatch)
            self.ran.notify_all()
        return StageOutput(sampled_ids=sampled)

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy pages."""
        for source, target in zip(source_ids, target_ids, strict=True):
            for layer in range(self.description.first_layer, self.description.last_layer):
                if (layer, source) in self._pages:
                    self._pages[layer, target] = self._pages[layer, source].copy()

    def release(self, row: int) -> None:
        """Forget a row."""
        del self.tables[row]
        del self.lengths[row]

    def page_layer_bytes(self) -> int:
        """Sixteen bytes a token."""
        return 16 * self._page_tokens

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return what was written, else zeros."""
        empty = np.zeros(self.page_layer_bytes(), dtype=np.uint8)
        return self._pages.get((layer, page_id), empty)

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Keep the bytes."""
        self._pages[layer, page_id] = data.copy()

    def wait_for(self, num_microbatches: int, timeout_s: float = 10.0) -> None:
        """Block until so many microbatches have run in all."""
        with self.ran:
            assert self.ran.wait_for(lambda: len(self.microbatches) >= num_microbatches, timeout_s)

    def _play(self, seed: int, position: int) -> int:
        """Return the script's id."""
        ids = self._script.ids.get(seed, ())
        return ids[position] if position < len(ids) else self._script.otherwise

    def _grow(self, microbatch: Microbatch) -> npt.NDArray[np.int64]:
        """Grow rows as the entries say; return the position of each token."""
        parts = []
        for entry in microbatch.entries:
            table = self.tables.setdefault(entry.row, [])
            table.extend(entry.new_page_ids)
            end = entry.start + entry.num_tokens
            assert len(table) * self._page_tokens >= end, "a page is missing"
            assert all(0 <= page < self._num_pages for page in table)
            assert entry.start == self.lengths.get(entry.row, entry.start), "a gap in a row"
            self.lengths[entry.row] = end
            parts.append(np.arange(entry.start, end))
        return np.concatenate(parts)


def scripted_stages(num_stages: int, script: Script) -> list[ScriptedStage]:
    """Make the stages of a model with one layer a stage."""
    return [ScriptedStage(n, n + 1, num_stages, script) for n in range(num_stages)]
