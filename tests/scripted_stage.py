"""SCRIPT: a stage without weights whose last stage plays given token ids or logits.

Requests are told apart by their seed, outputs of one request by (seed, child). Given ids are played
whatever the settings; given logits go through the product's sampler. Every stage checks what a real
one relies on: rows and page tables grow as they should, activations are those of the stage before.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from chunkmesh.logprobs import TokenLogprobs
from stage_worker.orders import Microbatch, PromptTargets, SamplingRow
from stage_worker.sampler import Sampled, Sampler
from stage_worker.stage import StageDescription, StageOutput
from stage_worker.token_logprobs import token_logprobs
from tests.gate import Gate

HIDDEN = 8

Key = int | tuple[int, int]
"""A seed, or a seed and a child, which goes first."""


def logits_row(
    by_id: Mapping[int, float],
    others: float = -30.0,
    *,
    vocab_size: int = 264,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return logits [V] that are others but for some ids."""
    row_V = torch.full((vocab_size,), others)
    for token_id, value in by_id.items():
        row_V[token_id] = value
    return row_V.to(dtype)


@dataclasses.dataclass(slots=True, kw_only=True)
class Script:
    """What the last stage plays; shared by the stages of one mesh."""

    ids: Mapping[Key, Sequence[int]] = dataclasses.field(default_factory=dict)
    """Ids by output position; behind the end, `otherwise`."""
    otherwise: int = 65
    logits: Mapping[Key, Sequence[torch.Tensor]] = dataclasses.field(default_factory=dict)
    """Logits [V] by output position; behind the end, the last one."""
    otherwise_logits: torch.Tensor | None = None
    """If given, goes before `otherwise` for requests in neither ids nor logits."""
    prompt_logits: torch.Tensor | None = None
    """Logits [V] at each position of a prompt; None is otherwise_logits, or all ids alike."""
    vocab_size: int = 264
    """Where no logits are given."""
    gate: Gate | None = None
    """Holds each forward of the last stage."""
    delay_s: float = 0.0
    """Of each forward of the last stage."""
    prefill_delay_s: float = 0.0
    """Added where an entry has several tokens."""
    decode_delay_s: float = 0.0
    """Added where none has."""

    def played_id(self, row: SamplingRow) -> int | None:
        """Return the given id; None where logits are given."""
        for key in ((row.seed, row.child), row.seed):
            if key in self.ids:
                ids = self.ids[key]
                return ids[row.position] if row.position < len(ids) else self.otherwise
            if key in self.logits:
                return None
        return self.otherwise if self.otherwise_logits is None else None

    def logits_of(self, row: SamplingRow) -> torch.Tensor:
        """Return the logits [V] of a row; those of a given id have it far above the others."""
        played = self.played_id(row)
        if played is not None:
            return logits_row({played: 0.0}, vocab_size=self.vocab_size)
        for key in ((row.seed, row.child), row.seed):
            if key in self.logits:
                rows = self.logits[key]
                return rows[min(row.position, len(rows) - 1)]
        assert self.otherwise_logits is not None
        return self.otherwise_logits

    def delay_of(self, microbatch: Microbatch) -> float:
        """Return the seconds that a forward of the last stage takes."""
        prefill = any(entry.num_tokens > 1 for entry in microbatch.entries)
        return self.delay_s + (self.prefill_delay_s if prefill else self.decode_delay_s)


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
        self._sampler = Sampler()
        self._page_tokens = 0
        self._num_pages = 0
        self._pages: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}

    def allocate(self, *, num_pages: int, page_tokens: int) -> None:
        """Begin with no rows."""
        self._num_pages, self._page_tokens = num_pages, page_tokens
        self.tables.clear()
        self.lengths.clear()
        self._sampler.clear()

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
        output = StageOutput()
        if last:
            if self._script.gate is not None:
                self._script.gate.enter()
            time.sleep(self._script.delay_of(microbatch))
            output = self._play(microbatch)
        with self.ran:
            self.microbatches.append(microbatch)
            self.ran.notify_all()
        return output

    def copy_pages(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy pages."""
        for source, target in zip(source_ids, target_ids, strict=True):
            for layer in range(self.description.first_layer, self.description.last_layer):
                if (layer, source) in self._pages:
                    self._pages[layer, target] = self._pages[layer, source].copy()

    def release(self, row: int) -> None:
        """Forget a row, which may end before it had an entry of its own."""
        self.tables.pop(row, None)
        self.lengths.pop(row, None)
        self._sampler.release(row)

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

    def _play(self, microbatch: Microbatch) -> StageOutput:
        """Play the script."""
        parts = [self._play_row(row) for row in microbatch.sampling]
        without_choice = tuple(index for index, part in enumerate(parts) if part.without_choice)
        return StageOutput(
            sampled_ids=tuple(id_ for part in parts for id_ in part.ids),
            sampled_logprobs=tuple(each for part in parts for each in part.logprobs),
            prompt_logprobs=tuple(map(self._prompt_logprobs, microbatch.prompt_targets)),
            without_choice=without_choice,
        )

    def _play_row(self, row: SamplingRow) -> Sampled:
        """Choose one token."""
        played = self._script.played_id(row)
        if played is None:
            return self._sampler.sample((row,), self._script.logits_of(row)[None], (0,))
        if row.top_logprobs is None:
            return Sampled(ids=(played,), logprobs=())
        logits_1V = self._script.logits_of(row)[None]
        logprobs = token_logprobs(logits_1V, np.array([played]), row.top_logprobs)
        return Sampled(ids=(played,), logprobs=(logprobs,))

    def _prompt_logprobs(self, targets: PromptTargets) -> TokenLogprobs:
        """Tell the same of every position."""
        script = self._script
        row_V = script.prompt_logits
        if row_V is None:
            row_V = script.otherwise_logits
        if row_V is None:
            row_V = torch.zeros(script.vocab_size)
        logits_nV = row_V.expand(len(targets.target_ids), -1)
        return token_logprobs(logits_nV, targets.target_ids, targets.top_logprobs)

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
