"""Checks what an engine orders on one route against everything that stages count on.

Order and window of microbatches, rows, and pages: none is written for somebody while another has
it, or while a microbatch that names it is in flight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from scheduler.actions import (
    Action,
    PlannedEntry,
    PlannedSample,
    SendCommitLoad,
    SendCopyPages,
    SendMicrobatch,
    SendRelease,
)
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec

Place = tuple[str, int]
"""Whose page it is: a request, and the page's index in its table."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Row:
    """What the stages know of a row."""

    request_id: str
    covered: int
    """Positions computed."""
    child: int | None = None
    """Known with the first sample."""
    table: list[int] = dataclasses.field(default_factory=list)


class OrderChecks:
    """One route."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_stages: int,
        epoch: int,
        specs: Mapping[str, RequestSpec],
        outputs: Mapping[tuple[str, int], Sequence[int]],
    ) -> None:
        """Begin an epoch; specs and outputs by request and child are the mesh's and grow."""
        self._config, self._num_stages, self._epoch = config, num_stages, epoch
        self._specs, self._outputs = specs, outputs
        self._num_sent = 0
        self._num_acked = [0] * num_stages
        self._rows: dict[int, _Row] = {}
        self._in_flight: dict[int, dict[int, Place]] = {}
        """Pages that the microbatches name that some stage has not acknowledged."""

    def acked(self, stage: int) -> None:
        """Note that the engine hears of a stage's next microbatch."""
        self._num_acked[stage] += 1
        self._in_flight.pop(min(self._num_acked) - 1, None)

    def check(self, action: Action) -> None:
        """Check one order."""
        match action:
            case SendMicrobatch():
                self._microbatch(action)
            case SendRelease(row=row):
                del self._rows[row]
            case SendCommitLoad(page_ids=page_ids):
                self._are_unused(page_ids)
            case SendCopyPages(target_ids=target_ids):
                self._are_unused(target_ids)

    def _microbatch(self, microbatch: SendMicrobatch) -> None:
        """Check a microbatch."""
        assert (self._epoch, self._num_sent) == (microbatch.epoch, microbatch.seq_no)
        self._num_sent += 1
        assert self._num_sent - self._num_acked[-1] <= self._config.window(self._num_stages)
        assert self._num_sent - self._num_acked[0] <= 2
        rows = [entry.row for entry in microbatch.entries]
        assert len(set(rows)) == len(rows)
        assert len(rows) <= (self._config.max_microbatch_requests or len(rows))
        assert len({sample.row for sample in microbatch.samples}) == len(microbatch.samples)
        assert microbatch.num_tokens <= self._config.max_microbatch_tokens
        named: dict[int, Place] = {}
        prefill_tokens = 0
        for index, entry in enumerate(microbatch.entries):
            samples = [sample for sample in microbatch.samples if sample.entry == index]
            prefill_tokens += self._entry(entry, samples)
            table = self._rows[entry.row].table
            named |= {page: (entry.request_id, index) for index, page in enumerate(table)}
        assert prefill_tokens <= self._config.chunked_prefill_tokens
        self._in_flight[microbatch.seq_no] = named

    def _entry(self, entry: PlannedEntry, samples: Sequence[PlannedSample]) -> int:
        """Check an entry and what is sampled behind it; return its prefill tokens."""
        row = self._rows.get(entry.row)
        if row is None:
            assert entry.start % self._config.page_tokens == 0
            row = _Row(request_id=entry.request_id, covered=entry.start)
            self._rows[entry.row] = row
        assert (row.request_id, row.covered) == (entry.request_id, entry.start)
        assert entry.num_tokens >= 1
        row.covered += entry.num_tokens
        for page_id in entry.new_page_ids:
            self._may_name(page_id, len(row.table), entry)
            row.table.append(page_id)
        self._may_write(row, entry)
        is_decoding = row.child is not None
        if is_decoding:
            assert (entry.num_tokens, len(samples)) == (1, 1)
        if samples:
            self._samples(entry, row, samples)
        return 0 if is_decoding else entry.num_tokens

    def _samples(self, entry: PlannedEntry, row: _Row, samples: Sequence[PlannedSample]) -> None:
        """Check who gets tokens, and let the rows of new outputs begin."""
        spec = self._specs[entry.request_id]
        first, *others = samples
        assert first.row == entry.row
        assert row.child in (None, first.child)
        row.child = first.child
        for sample in samples:
            output = self._outputs[entry.request_id, sample.child]
            assert sample.position == len(output) == row.covered - len(spec.prompt_ids)
        if others:
            assert [sample.child for sample in samples] == list(range(spec.num_outputs))
            assert first.position == 0
        for sample in others:
            assert sample.row not in self._rows
            self._rows[sample.row] = _Row(
                request_id=entry.request_id, covered=row.covered, child=sample.child
            )

    def _may_name(self, page_id: int, index: int, entry: PlannedEntry) -> None:
        """A page that is full may belong to several rows, at the same place of a namespace."""
        owners = self._owners(page_id)
        assert not owners or (index + 1) * self._config.page_tokens <= entry.start
        namespace = self._specs[entry.request_id].namespace
        for request_id, place in owners:
            assert place == index
            assert self._specs[request_id].namespace == namespace

    def _may_write(self, row: _Row, entry: PlannedEntry) -> None:
        """What an entry fills is in no other row's table."""
        written = set(row.table[entry.start // self._config.page_tokens :])
        for other in self._rows.values():
            assert other is row or written.isdisjoint(other.table)

    def _are_unused(self, page_ids: Sequence[int]) -> None:
        """What is copied must not overwrite what somebody has."""
        assert [owner for page_id in page_ids for owner in self._owners(page_id)] == []

    def _owners(self, page_id: int) -> list[Place]:
        """Return everybody who has a page, in a table or in flight."""
        tables = [
            (row.request_id, row.table.index(page_id))
            for row in self._rows.values()
            if page_id in row.table
        ]
        return tables + [named[page_id] for named in self._in_flight.values() if page_id in named]
