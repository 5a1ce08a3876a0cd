"""CONTEXT: a stage without weights whose outputs depend on all that it has ever been given.

Its KV is one number for each token and layer, exact in float32 whatever the cuts: whatever is
missing, mixed up or of somebody else in any stage's pages gives other ids. One layer a stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from stage_worker.orders import Entry, Microbatch, SamplingRow
from stage_worker.stage import StageDescription, StageOutput

HIDDEN = 2
_PRIME = 9973
_NUM_IDS = 251
_NUMBER_BYTES = 4
Numbers = npt.NDArray[np.int64]


class ContextStage:
    """Implements stage_worker.stage.Stage."""

    def __init__(self, layer: int, model_layers: int) -> None:
        """Hold one layer."""
        self.description = StageDescription(
            first_layer=layer,
            last_layer=layer + 1,
            model_layers=model_layers,
            hidden_size=HIDDEN,
            dtype=torch.float32,
            kv_bytes_per_token=_NUMBER_BYTES,
            layer_digests=(bytes([layer]) * 16,),
            embedding_digest=b"e" if layer == 0 else b"",
            head_digest=b"h" if layer == model_layers - 1 else b"",
            config_digest=b"c",
            device="cpu",
        )
        self._layer = layer
        self._pages = np.zeros((0, 0), dtype=np.int32)
        self._tables: dict[int, list[int]] = {}
        self._seen: dict[int, Counter[int]] = {}
        """Of rows with penalties."""

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Begin with no rows."""
        if self._pages.shape != (num_pages, page_tokens):
            self._pages = np.full((num_pages, page_tokens), -1, dtype=np.int32)
        self._tables.clear()
        self._seen.clear()

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Look at all that came before each token."""
        if hidden_in_TD is None:
            assert microbatch.token_ids is not None
            given = microbatch.token_ids.astype(np.int64)
        else:
            given = hidden_in_TD[:, 0].numpy().astype(np.int64)
        outputs: list[Numbers] = []
        for entry in microbatch.entries:
            outputs.append(self._run(entry, given[: entry.num_tokens]))
            given = given[entry.num_tokens :]
        if hidden_out_TD is not None:
            hidden_out_TD[:, 0] = torch.from_numpy(np.concatenate(outputs))
            return StageOutput()
        chosen = [self._choose(row, int(outputs[row.entry][-1])) for row in microbatch.sampling]
        return StageOutput(sampled_ids=tuple(chosen))

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy pages."""
        self._pages[list(target_ids)] = self._pages[list(source_ids)]

    def release(self, row: int) -> None:
        """Forget a row."""
        self._tables.pop(row, None)
        self._seen.pop(row, None)

    def page_layer_bytes(self) -> int:
        """Four bytes a token."""
        return int(self._pages[0].nbytes)

    def read_page(self, layer: int, page_id: int) -> npt.NDArray[np.uint8]:
        """Return a page's numbers."""
        assert layer == self._layer
        return np.array(self._pages[page_id].view(np.uint8))

    def write_page(self, layer: int, page_id: int, data: npt.NDArray[np.uint8]) -> None:
        """Take a page's numbers."""
        assert layer == self._layer
        self._pages[page_id] = np.frombuffer(data.tobytes(), dtype=np.int32)

    def _run(self, entry: Entry, given: Numbers) -> Numbers:
        """Write what is given into the row's pages, and return what its tokens see."""
        table = self._tables.setdefault(entry.row, [])
        table += entry.new_page_ids
        page_tokens = self._pages.shape[1]
        end = entry.start + entry.num_tokens
        assert len(table) * page_tokens >= end, "a page is missing"
        for position, value in enumerate(given.tolist(), start=entry.start):
            self._pages[table[position // page_tokens], position % page_tokens] = value
        known = self._pages[table].reshape(-1)[:end].astype(np.int64)
        return _seen_by(self._layer, known)[entry.start :]

    def _choose(self, row: SamplingRow, number: int) -> int:
        penalties = row.penalties
        if penalties is None:
            return _next_id(number, row.seed, row.child, row.position, Counter())
        if penalties.seen is not None:
            ids, counts = penalties.seen.ids.tolist(), penalties.seen.counts.tolist()
            self._seen[row.row] = Counter(dict(zip(ids, counts, strict=True)))
        chosen = _next_id(number, row.seed, row.child, row.position, self._seen[row.row])
        self._seen[row.row][chosen] += 1
        return chosen


def expected_ids(
    prompt: Sequence[int],
    num_new: int,
    *,
    model_layers: int,
    seed: int,
    child: int,
    has_penalties: bool,
) -> list[int]:
    """Return the output that a request must have."""
    known = list(prompt)
    for position in range(num_new):
        numbers = np.array(known, dtype=np.int64)
        for layer in range(model_layers):
            numbers = _seen_by(layer, numbers)
        seen = Counter(known) if has_penalties else Counter[int]()
        known.append(_next_id(int(numbers[-1]), seed, child, position, seen))
    return known[len(prompt) :]


def _seen_by(layer: int, numbers: Numbers) -> Numbers:
    """Return what each token makes of all up to itself."""
    places = np.arange(1, len(numbers) + 1) * (layer + 3)
    return np.asarray((np.cumsum(numbers * places) + 7 * numbers + layer) % _PRIME)


def _next_id(number: int, seed: int, child: int, position: int, seen: Counter[int]) -> int:
    weight = sum(token_id * count for token_id, count in seen.items())
    return (number + 31 * seed + 13 * child + 5 * position + weight) % _NUM_IDS
