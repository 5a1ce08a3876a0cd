"""A stage without a model, for simulations: its KV are the token ids, so that every mix-up shows.

Works first in, first out like a real one; loads and stores run beside, in any order, and read pages
when they run, not when they were ordered: a page that was freed too early is caught by its digest.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.pages import extend_chain
from scheduler.actions import (
    Action,
    PlannedEntry,
    PlannedSample,
    PlannedTargets,
    SendCancelLoad,
    SendCommitLoad,
    SendCopyPages,
    SendEndLoad,
    SendLoad,
    SendMicrobatch,
    SendRelease,
    SendSavePages,
    SendStore,
)
from scheduler.events import Acked, Event, Loaded, Stored

PAGE_TOKENS = 4
PAGE_BYTES = 16
Page = tuple[int, ...]
Redis = dict[tuple[bytes, int], Page]
"""Contents by page digest and stage."""


def next_token(context: Sequence[int], forbidden_ids: Sequence[int], child: int = 0) -> int:
    """Choose the token behind a context, as every simulated model does."""
    token_id = (7 * sum(context) + len(context) + 5 * child) % 13 + 2
    while token_id in forbidden_ids:
        token_id += 1
    return token_id


def log_probs(context: Sequence[int], token_ids: Sequence[int], num_top: int) -> TokenLogprobs:
    """Return what every simulated model tells of the tokens that follow a context."""
    tokens = np.array([*context, *token_ids])
    values = -(np.cumsum(tokens)[len(context) :] * 31 + token_ids) % 1009
    tops = np.arange(num_top)
    return TokenLogprobs(
        logprobs_T=values.astype(np.float32),
        top_ids_Tk=(values[:, None] + tops).astype(np.uint32),
        top_logprobs_Tk=(values[:, None] - tops).astype(np.float32),
    )


class SimulatedStage:
    """One stage of one epoch."""

    def __init__(
        self,
        *,
        index: int,
        epoch: int,
        is_last: bool,
        pool: list[list[int]],
        host: dict[int, Page],
    ) -> None:
        """Begin with its memory, perhaps as an earlier stage of the same worker has left it."""
        self.orders: deque[Action] = deque()
        """What the scheduler sent and the stage has not begun."""
        self.said: deque[Event] = deque()
        """What it said and the scheduler has not heard."""
        self.beside: list[SendLoad | SendStore] = []
        """Loads and stores that run."""
        self.num_computed = 0
        """Microbatches done."""
        self._index, self._epoch, self._is_last = index, epoch, is_last
        self.pool = pool
        """What each page holds."""
        self._tables: dict[int, list[int]] = {}
        """Of the rows that an entry has named."""
        self._seen: dict[int, Counter[int]] = {}
        """Last stage: what each row has seen that samples with penalties."""
        self._sampled: set[int] = set()
        """Last stage: rows that a sample has named."""
        self.host = host
        """What each host page holds, by id."""
        self._copies: dict[int, list[Page]] = {}
        """Of stores in turn."""
        self._staging: dict[int, tuple[tuple[int, ...], list[Page]]] = {}
        """Of each load, where its first pages lie in host memory, and the others."""
        self._cancelled: set[int] = set()
        self._ended: set[int] = set()
        """Loads that were to end early."""

    def can_work(self, upstream: SimulatedStage | None) -> bool:
        """Whether the next order can be done: a microbatch needs its activation."""
        if not self.orders:
            return False
        order = self.orders[0]
        if upstream is None or not isinstance(order, SendMicrobatch):
            return True
        return upstream.num_computed > order.seq_no

    def work(self) -> None:
        """Do the next order."""
        match self.orders.popleft():
            case SendMicrobatch() as microbatch:
                self._compute(microbatch)
            case SendCommitLoad() | SendCancelLoad() as order:
                self._end_load(order)
            case SendSavePages() | SendCopyPages() as order:
                self._copy_pages(order)
            case SendRelease(row=row):
                assert row in self._tables or row in self._sampled or not self._is_last
                self._tables.pop(row, None)
                self._seen.pop(row, None)
                self._sampled.discard(row)
            case SendEndLoad(load_id=load_id):
                self._ended.add(load_id)
            case SendLoad() | SendStore() as order:
                self._begin(order)

    def _end_load(self, order: SendCommitLoad | SendCancelLoad) -> None:
        """Use what a load has brought, or forget it."""
        if isinstance(order, SendCancelLoad):
            self._staging.pop(order.load_id, None)
            self._cancelled.add(order.load_id)
            return
        host_ids, read = self._staging.pop(order.load_id)
        staged = [self.host[host_id] for host_id in host_ids] + read
        for page_id, page in zip(order.page_ids, staged[: len(order.page_ids)], strict=True):
            self.pool[page_id] = list(page)

    def _copy_pages(self, order: SendSavePages | SendCopyPages) -> None:
        """Copy pages inside the pool or to host memory."""
        if isinstance(order, SendSavePages):
            self.save(order)
            return
        assert len(set(order.target_ids)) == len(order.target_ids)
        assert not set(order.source_ids) & set(order.target_ids)
        for source, target in zip(order.source_ids, order.target_ids, strict=True):
            self.pool[target] = list(self.pool[source])

    def save(self, order: SendSavePages) -> None:
        """Copy pages to host memory."""
        assert len(set(order.host_ids)) == len(order.host_ids) == len(order.digests)
        for page_id, host_id in zip(order.page_ids, order.host_ids, strict=True):
            self.host[host_id] = tuple(self.pool[page_id])

    def _begin(self, order: SendLoad | SendStore) -> None:
        """Begin what runs beside, with a copy of pages that nothing pins."""
        if isinstance(order, SendStore) and order.in_turn:
            self._copies[order.store_id] = self._copy(order)
        self.beside.append(order)

    def end_beside(
        self, order: SendLoad | SendStore, redis: Redis, *, in_part: bool = False
    ) -> None:
        """End a load or a store; of a load that has to end early only the front is there."""
        self.beside.remove(order)
        if isinstance(order, SendStore):
            self.said.append(self._store(order, redis))
            return
        wanted = order.digests
        if in_part or order.load_id in self._ended:
            wanted = wanted[: max(len(wanted) // 2, len(order.host_ids))]
        num_host = len(order.host_ids)
        found = [redis.get((digest, self._index)) for digest in wanted[num_host:]]
        usable = num_host + (found.index(None) if None in found else len(found))
        if order.load_id not in self._cancelled:
            read = [page for page in found[: usable - num_host] if page is not None]
            self._staging[order.load_id] = (order.host_ids, read)
        self.said.append(
            Loaded(
                epoch=self._epoch,
                stage=self._index,
                load_id=order.load_id,
                num_pages=usable,
                num_host_pages=num_host,
                num_bytes=(usable - num_host) * PAGE_BYTES,
                took_s=0.001,
                is_damaged=usable < len(wanted),
            )
        )

    def _store(self, order: SendStore, redis: Redis) -> Event:
        """Write pages, each checked against its digest."""
        contents = self._copies.pop(order.store_id, None) or self._copy(order)
        for page, content in zip(order.pages, contents, strict=True):
            ids = np.array(content, dtype=np.uint32)
            assert extend_chain(page.parent, ids, PAGE_TOKENS) == (page.digest,)
            redis[page.digest, self._index] = tuple(content)
        stored = tuple(range(len(order.pages)))
        return Stored(epoch=self._epoch, stage=self._index, store_id=order.store_id, stored=stored)

    def _copy(self, order: SendStore) -> list[Page]:
        """Read what a store writes."""
        memory = self.host if order.tier == "host" else self.pool
        return [tuple(memory[page.page_id]) for page in order.pages]

    def _compute(self, microbatch: SendMicrobatch) -> None:
        """Write the tokens of all entries into pages and sample."""
        assert microbatch.seq_no == self.num_computed
        token_ids = microbatch.token_ids.tolist()
        for entry in microbatch.entries:
            self._write(entry, token_ids[: entry.num_tokens])
            token_ids = token_ids[entry.num_tokens :]
        self.num_computed += 1
        acked = Acked(
            epoch=self._epoch,
            stage=self._index,
            seq_no=microbatch.seq_no,
            compute_ms=1.5 * microbatch.predicted_ms[self._index] if microbatch.predicted_ms else 0,
        )
        self.said.append(self._results(acked, microbatch) if self._is_last else acked)

    def _results(self, acked: Acked, microbatch: SendMicrobatch) -> Acked:
        """Add what only the last stage tells."""
        sampled, logprobs = [], []
        for sample in microbatch.samples:
            context = self._context(microbatch.entries[sample.entry])
            token_id = next_token(context, sample.forbidden_ids, sample.child)
            self._count(sample, context, token_id)
            sampled.append(token_id)
            if sample.sampling.top_logprobs is not None:
                logprobs.append(log_probs(context, [token_id], sample.sampling.top_logprobs))
        return dataclasses.replace(
            acked,
            sampled_ids=tuple(sampled),
            sampled_logprobs=tuple(logprobs),
            prompt_logprobs=tuple(
                self._prompt(microbatch.entries[targets.entry], targets)
                for targets in microbatch.prompt_targets
            ),
        )

    def _count(self, sample: PlannedSample, context: list[int], token_id: int) -> None:
        """Count for penalties; what was counted must be prompt and output so far."""
        self._sampled.add(sample.row)
        if not sample.sampling.has_penalties:
            assert sample.seen is None
            return
        if sample.seen is not None:
            assert sample.row not in self._seen
            ids, counts = sample.seen.ids.tolist(), sample.seen.counts.tolist()
            self._seen[sample.row] = Counter(dict(zip(ids, counts, strict=True)))
        assert self._seen[sample.row] == Counter(context)
        self._seen[sample.row][token_id] += 1

    def _prompt(self, entry: PlannedEntry, targets: PlannedTargets) -> TokenLogprobs:
        """Tell of prompt tokens; all but the last of them must be the entry's own."""
        target_ids = targets.target_ids.tolist()
        context = self._context(entry)
        assert context[entry.start + 1 :] == target_ids[: entry.num_tokens - 1]
        return log_probs(context[: entry.start + 1], target_ids, targets.top_logprobs)

    def _context(self, entry: PlannedEntry) -> list[int]:
        """Return the tokens that an entry's last token sees."""
        return self._read(entry.row, entry.start + entry.num_tokens)

    def _write(self, entry: PlannedEntry, token_ids: list[int]) -> None:
        """Write one entry's tokens; its row's table must be just long enough."""
        table = self._tables.setdefault(entry.row, [])
        table += entry.new_page_ids
        assert len(table) == -(-(entry.start + entry.num_tokens) // PAGE_TOKENS)
        for position, token_id in enumerate(token_ids, start=entry.start):
            self.pool[table[position // PAGE_TOKENS]][position % PAGE_TOKENS] = token_id

    def _read(self, row: int, num_tokens: int) -> list[int]:
        """Return the tokens that the row's pages hold."""
        pages = [self.pool[page_id] for page_id in self._tables[row]]
        return [token_id for page in pages for token_id in page][:num_tokens]
