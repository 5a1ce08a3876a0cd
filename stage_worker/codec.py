"""Between the protos of the Attach stream and the worker's plain values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from chunkmesh import PROTOCOL_VERSION
from chunkmesh.errors import LinkError
from chunkmesh.page_record import PageFormat
from chunkmesh.token_counts import TokenCounts
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.compute import CopyPages
from stage_worker.element_type import dtype_name
from stage_worker.identity import Identity
from stage_worker.orders import (
    Entry,
    Microbatch,
    Penalties,
    PromptTargets,
    SamplingRow,
    StorePage,
)
from stage_worker.page_jobs import LoadResult, StoreResult
from stage_worker.profile_plan import ProfilePoint
from stage_worker.stage import StageDescription

DTYPES = {
    torch.float32: common_pb2.DTYPE_FLOAT32,
    torch.bfloat16: common_pb2.DTYPE_BFLOAT16,
    torch.float16: common_pb2.DTYPE_FLOAT16,
}


def hello_message(
    identity: Identity, *, data_address: str, transport: str, seen_epoch: int = 0
) -> pb.AttachRequest:
    """Write the first message of a stream."""
    description = identity.description
    return pb.AttachRequest(
        hello=pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            incarnation=identity.incarnation,
            layers=common_pb2.LayerRange(
                first=description.first_layer, last=description.last_layer
            ),
            layer_digests=description.layer_digests,
            embedding_digest=description.embedding_digest,
            head_digest=description.head_digest,
            config_digest=description.config_digest,
            model_layers=description.model_layers,
            dtype=DTYPES[description.dtype],
            hidden_size=description.hidden_size,
            kv_bytes_per_token=description.kv_bytes_per_token,
            kv_capacity_tokens=identity.kv_capacity_tokens,
            host_capacity_tokens=identity.host_capacity_tokens,
            data_address=data_address,
            transport=transport,
            device=description.hardware,
            backends=[
                common_pb2.Backend(operation=each.operation, name=each.name, reason=each.reason)
                for each in description.backends
            ],
            profile=map(_profile_point, identity.profile),
            chunk_alignment_tokens=description.chunk_alignment_tokens,
            peer=identity.peer.address if identity.peer else "",
            seen_epoch=seen_epoch,
        )
    )


def _profile_point(point: ProfilePoint) -> pb.ProfilePoint:
    """Write a measured microbatch."""
    shape = point.shape
    if shape.num_rows:
        return pb.ProfilePoint(
            num_rows=shape.num_rows,
            row_tokens=shape.prefix_tokens + 1,
            compute_us=point.compute_us,
        )
    return pb.ProfilePoint(
        start=shape.prefix_tokens, num_tokens=shape.chunk_tokens, compute_us=point.compute_us
    )


def copy_pages_from(message: pb.CopyPages) -> CopyPages:
    """Read an order to copy pages."""
    return CopyPages(source_ids=tuple(message.source_ids), target_ids=tuple(message.target_ids))


def microbatch_from(message: pb.Microbatch) -> Microbatch:
    """Read a microbatch.

    Raises:
        LinkError: it breaks the protocol.
    """
    entries = tuple(
        Entry(
            row=entry.row,
            start=entry.start,
            num_tokens=entry.num_tokens,
            new_page_ids=tuple(entry.new_page_ids),
        )
        for entry in message.entries
    )
    token_ids = None
    if message.token_ids_le:
        token_ids = np.frombuffer(message.token_ids_le, dtype="<u4")
        if len(token_ids) != sum(entry.num_tokens for entry in entries):
            raise LinkError(f"microbatch {message.seq_no} has {len(token_ids)} ids")
    return Microbatch(
        epoch=message.epoch,
        seq_no=message.seq_no,
        entries=entries,
        token_ids=token_ids,
        sampling=_sampling_rows(message.sampling),
        prompt_targets=tuple(
            PromptTargets(
                entry=targets.entry,
                target_ids=np.frombuffer(targets.target_ids_le, dtype="<u4"),
                top_logprobs=targets.top_logprobs,
            )
            for targets in message.prompt_targets
        ),
    )


def _sampling_rows(rows: Iterable[pb.SamplingRow]) -> tuple[SamplingRow, ...]:
    """Read the tokens to choose; what the first row of an entry has seen, its others have too."""
    seen: dict[int, TokenCounts] = {}
    for row in rows:
        if row.seen_ids:
            seen[row.entry] = TokenCounts(
                ids=np.array(row.seen_ids, dtype=np.uint32),
                counts=np.array(row.seen_counts, dtype=np.uint32),
            )
    return tuple(_sampling_row(row, seen.get(row.entry)) for row in rows)


def _sampling_row(row: pb.SamplingRow, seen: TokenCounts | None) -> SamplingRow:
    """Read one token to choose."""
    return SamplingRow(
        entry=row.entry,
        row=row.row,
        seed=row.seed,
        child=row.child,
        position=row.position,
        temperature=row.temperature,
        top_p=row.top_p,
        top_k=row.top_k,
        min_p=row.min_p,
        forbidden_ids=tuple(row.forbidden_ids),
        penalties=_penalties(row, seen),
        logit_bias=tuple(zip(row.bias_ids, row.biases, strict=True)),
        top_logprobs=row.top_logprobs if row.HasField("top_logprobs") else None,
    )


def _penalties(row: pb.SamplingRow, seen: TokenCounts | None) -> Penalties | None:
    """Read a row's penalties; None if they change nothing."""
    penalties = (row.frequency_penalty, row.presence_penalty, row.repetition_penalty)
    if penalties == (0.0, 0.0, 1.0):
        return None
    return Penalties(
        frequency=row.frequency_penalty,
        presence=row.presence_penalty,
        repetition=row.repetition_penalty,
        seen=seen,
    )


def page_format_from(join: pb.Join, description: StageDescription) -> PageFormat:
    """Say what all pages of an epoch have in common."""
    layer_bytes = description.kv_bytes_per_token * join.page_tokens // description.num_layers
    return PageFormat(
        model_layers=description.model_layers,
        dtype=dtype_name(description.dtype),
        page_tokens=join.page_tokens,
        layer_bytes=layer_bytes,
    )


def store_pages_from(message: pb.Store) -> tuple[StorePage, ...]:
    """Read the pages of a Store."""
    return tuple(
        StorePage(
            namespace=page.namespace,
            digest=page.digest,
            parent=page.parent,
            page_index=page.page_index,
            page_id=page.page_id,
        )
        for page in message.pages
    )


def page_io_message(result: LoadResult | StoreResult) -> pb.AttachRequest:
    """Write the end of a load or a store."""
    if isinstance(result, LoadResult):
        return pb.AttachRequest(
            load_done=pb.LoadDone(
                load_id=result.load_id,
                num_pages=result.num_pages,
                num_host_pages=result.num_host_pages,
                bad_digests=result.bad_digests,
                num_bytes=result.num_bytes,
                took_us=result.took_us,
            )
        )
    done = pb.StoreDone(store_id=result.store_id, stored=result.stored)
    return pb.AttachRequest(store_done=done)
