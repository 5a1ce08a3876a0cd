"""Checks what a scheduler orders before anything is done about it. Pure.

A worker's weights take minutes to load, so no order may bring it down: one that contradicts what
was ordered before, or names what is not there, ends the stream, and the worker attaches again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from chunkmesh.errors import LinkError
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.identity import Identity

_TOKEN_BYTES = 16
_DIGEST_BYTES = 32
_MAX_PAGE_TOKENS = 1024
_MAX_MICROBATCH_TOKENS = 1 << 21
_MAX_ROWS = 1 << 16
_MAX_TOP_LOGPROBS = 64
_ID_BYTES = 4
_AT_ANY_TIME = {None, "connect", "end_load", "cancel_load", "stand_by", "released", "beat"}


class ReceivedOrders:
    """What the orders of one stream have said so far."""

    def __init__(self, identity: Identity, host_bytes: int) -> None:
        """Begin before the first Join, for a worker with so much host memory for pages."""
        self._description = identity.description
        self._kv_capacity_tokens = identity.kv_capacity_tokens
        self._host_bytes = host_bytes
        self._join: pb.Join | None = None
        self._num_host_pages = 0
        self._num_row_pages: dict[int, int] = {}
        """Row -> length of its page table."""
        self._next_seq_no = 0
        self._next_load_id = 0

    def accepts(self, response: pb.AttachResponse) -> bool:
        """Take note of an order; False if it is of an earlier epoch and nothing to be done.

        Raises:
            LinkError: it cannot be carried out; says why.
        """
        kind = response.WhichOneof("order")
        if kind == "join":
            self._begin(response.join)
            return True
        if kind in _AT_ANY_TIME:
            return True
        join = self._join
        if join is None:
            raise LinkError(f"{kind} came before join")
        match kind:
            case "microbatch":
                if response.microbatch.epoch != join.epoch:
                    return False
                self._check_microbatch(response.microbatch, join)
            case "release":
                self._num_row_pages.pop(response.release.row, None)
            case "copy_pages":
                copy = response.copy_pages
                _check_pairs("copy_pages", copy.source_ids, copy.target_ids)
                _check_below("a copied page", (*copy.source_ids, *copy.target_ids), join.num_pages)
            case _:
                self._check_cache(response, join)
        return True

    def _begin(self, join: pb.Join) -> None:
        """Check a Join and forget what went before it."""
        description = self._description
        has_before, has_behind = join.stage_index > 0, join.stage_index + 1 < join.num_stages
        _check_range("epoch", join.epoch, 1, (1 << 64) - 1)
        _check_range("stage_index", join.stage_index, 0, max(join.num_stages - 1, 0))
        _check_range("num_stages", join.num_stages, 1, description.model_layers)
        _check_range("page_tokens", join.page_tokens, 1, _MAX_PAGE_TOKENS)
        most_pages = self._kv_capacity_tokens // join.page_tokens
        _check_range("num_pages", join.num_pages, 1, most_pages)
        _check_range("max_microbatch_tokens", join.max_microbatch_tokens, 1, _MAX_MICROBATCH_TOKENS)
        if (has_before, has_behind) != (not description.is_first, not description.is_last):
            raise LinkError(
                f"join as stage {join.stage_index} of {join.num_stages} does not suit layers"
                f" {description.first_layer}-{description.last_layer - 1}"
            )
        for name, token, has_link in (
            ("inbound_token", join.inbound_token, has_before),
            ("outbound_token", join.outbound_token, has_behind),
        ):
            if len(token) != (_TOKEN_BYTES if has_link else 0):
                raise LinkError(f"join with an {name} of {len(token)} bytes")
        self._join = join
        page_bytes = description.kv_bytes_per_token * join.page_tokens
        self._num_host_pages = self._host_bytes // page_bytes
        self._num_row_pages.clear()
        self._next_seq_no = self._next_load_id = 0

    def _check_microbatch(self, microbatch: pb.Microbatch, join: pb.Join) -> None:
        _check_range("seq_no", microbatch.seq_no, self._next_seq_no, self._next_seq_no)
        self._next_seq_no += 1
        rows = [entry.row for entry in microbatch.entries]
        if not rows or len(set(rows)) < len(rows):
            raise LinkError(f"microbatch {microbatch.seq_no} without entries, or two of one row")
        for entry in microbatch.entries:
            self._check_entry(entry, join)
        num_tokens = sum(entry.num_tokens for entry in microbatch.entries)
        _check_range("tokens of a microbatch", num_tokens, 1, join.max_microbatch_tokens)
        is_first, is_last = self._description.is_first, self._description.is_last
        self._check_ids(microbatch.token_ids_le, num_tokens if is_first else 0)
        if not is_last and (microbatch.sampling or microbatch.prompt_targets):
            raise LinkError("sampling was asked of a stage that is not the last one")
        _check_below(
            "an entry to sample from", (row.entry for row in microbatch.sampling), len(rows)
        )
        for row in microbatch.sampling:
            self._check_sampling(row)
        self._check_targets(microbatch)

    def _check_entry(self, entry: pb.Entry, join: pb.Join) -> None:
        _check_below("a page of an entry", entry.new_page_ids, join.num_pages)
        num_pages = self._num_row_pages.get(entry.row, 0) + len(entry.new_page_ids)
        _check_range("pages of a row", num_pages, 1, join.num_pages)
        self._num_row_pages[entry.row] = num_pages
        _check_range("rows", len(self._num_row_pages), 1, _MAX_ROWS)
        _check_range("tokens of an entry", entry.num_tokens, 1, join.max_microbatch_tokens)
        end = entry.start + entry.num_tokens
        _check_range("the end of an entry", end, 1, num_pages * join.page_tokens)

    def _check_ids(self, ids_le: bytes, num_ids: int) -> None:
        """Check that bytes are so many ids of the vocabulary."""
        if len(ids_le) != _ID_BYTES * num_ids:
            raise LinkError(f"{len(ids_le)} bytes of token ids where {num_ids} ids belong")
        vocab_size = self._description.vocab_size
        if num_ids and vocab_size is not None:
            most = int(np.frombuffer(ids_le, dtype="<u4").max())
            _check_below("a token id", (most,), vocab_size)

    def _check_sampling(self, row: pb.SamplingRow) -> None:
        _check_pairs("seen ids", row.seen_ids, row.seen_counts)
        _check_pairs("biases", row.bias_ids, row.biases)
        if self._description.vocab_size is not None:
            ids = (*row.forbidden_ids, *row.seen_ids, *row.bias_ids)
            _check_below("a token id", ids, self._description.vocab_size)
        penalties = (row.frequency_penalty, row.presence_penalty, row.repetition_penalty)
        values = (row.temperature, row.top_p, row.min_p, *penalties, *row.biases)
        is_sound = (
            all(map(math.isfinite, values))
            and row.temperature >= 0
            and 0 < row.top_p <= 1
            and 0 <= row.min_p <= 1
            and row.repetition_penalty > 0
        )
        if not is_sound or row.top_logprobs > _MAX_TOP_LOGPROBS:
            raise LinkError(f"sampling of row {row.row} has a setting that is out of range")

    def _check_targets(self, microbatch: pb.Microbatch) -> None:
        targets = microbatch.prompt_targets
        entries = [each.entry for each in targets]
        _check_below("an entry with targets", entries, len(microbatch.entries))
        if len(set(entries)) < len(entries):
            raise LinkError("prompt targets of one entry came twice")
        for each in targets:
            num_ids = len(each.target_ids_le) // _ID_BYTES
            _check_range("targets", num_ids, 1, microbatch.entries[each.entry].num_tokens)
            self._check_ids(each.target_ids_le, num_ids)
            _check_range("top_logprobs of targets", each.top_logprobs, 0, _MAX_TOP_LOGPROBS)

    def _check_cache(self, response: pb.AttachResponse, join: pb.Join) -> None:
        """Check an order that concerns cached pages."""
        match response.WhichOneof("order"):
            case "load":
                load = response.load
                _check_range("load_id", load.load_id, self._next_load_id, (1 << 64) - 1)
                self._next_load_id = load.load_id + 1
                _check_digests(load.digests)
                _check_range("digests of a load", len(load.digests), 0, join.num_pages)
            case "commit_load":
                _check_below("a loaded page", response.commit_load.page_ids, join.num_pages)
            case "store":
                store = response.store
                for page in store.pages:
                    _check_digests((page.digest, page.parent, page.namespace))
                num_pages = self._num_host_pages if store.from_host else join.num_pages
                _check_below("a stored page", (page.page_id for page in store.pages), num_pages)
            case "save_pages":
                save = response.save_pages
                _check_digests(save.digests)
                _check_pairs("saved pages", save.page_ids, save.host_ids)
                _check_pairs("saved pages", save.page_ids, save.digests)
                _check_below("a saved page", save.page_ids, join.num_pages)
                _check_below("a host page", save.host_ids, self._num_host_pages)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise LinkError(f"{name} is {value}, must be from {least} to {most}")


def _check_below(name: str, ids: Iterable[int], limit: int) -> None:
    worst = max(ids, default=-1)
    if worst >= limit:
        raise LinkError(f"{name} is {worst}, must be below {limit}")


def _check_pairs(name: str, ones: Sequence[object], others: Sequence[object]) -> None:
    if len(ones) != len(others):
        raise LinkError(f"{name}: {len(ones)} and {len(others)}, must be equally many")


def _check_digests(digests: Iterable[bytes]) -> None:
    for digest in digests:
        if len(digest) != _DIGEST_BYTES:
            raise LinkError(f"a digest of {len(digest)} bytes, must have {_DIGEST_BYTES}")
