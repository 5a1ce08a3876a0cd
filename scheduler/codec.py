"""Between the engine's plain values and the protos of the Attach stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from chunkmesh.errors import InvariantViolated
from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.logprobs_codec import from_message
from chunkmesh.pages import TokenIds
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import stage_pb2 as pb
from scheduler import events
from scheduler.actions import (
    PlannedSample,
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
from scheduler.load_parts import part_of
from scheduler.timeline import AckTimes

_MAX_AMOUNT = 1 << 53
"""Of bytes and microseconds: centuries and petabytes, and sums of them still fit a message."""


def microbatch_orders(action: SendMicrobatch, num_stages: int) -> list[pb.AttachResponse]:
    """Write a microbatch for each stage: ids only for the first, sampling only for the last."""
    entries = [
        pb.Entry(
            row=entry.row,
            start=entry.start,
            num_tokens=entry.num_tokens,
            new_page_ids=entry.new_page_ids,
        )
        for entry in action.entries
    ]
    middle = pb.AttachResponse(
        microbatch=pb.Microbatch(epoch=action.epoch, seq_no=action.seq_no, entries=entries)
    )
    orders = [middle] * num_stages
    for index in {0, num_stages - 1}:
        orders[index] = pb.AttachResponse()
        orders[index].CopyFrom(middle)
    first, last = orders[0].microbatch, orders[-1].microbatch
    first.token_ids_le = _ids_le(action.token_ids)
    last.sampling.extend(_sampling_rows(action.samples))
    last.prompt_targets.extend(
        pb.PromptTargets(
            entry=targets.entry,
            target_ids_le=_ids_le(targets.target_ids),
            top_logprobs=targets.top_logprobs,
        )
        for targets in action.prompt_targets
    )
    return orders


def _sampling_rows(samples: Sequence[PlannedSample]) -> Iterator[pb.SamplingRow]:
    """Write the tokens to choose.

    Samples of one entry have seen the same, and only the first tells it: counts of a long prompt,
    once for each of many outputs, would outgrow a message.
    """
    told_entry: int | None = None
    for sample in samples:
        row = _sampling_row(sample)
        if sample.seen is not None and sample.entry != told_entry:
            row.seen_ids.extend(sample.seen.ids.tolist())
            row.seen_counts.extend(sample.seen.counts.tolist())
            told_entry = sample.entry
        yield row


def _sampling_row(sample: PlannedSample) -> pb.SamplingRow:
    """Write one token to choose, but not what it has seen."""
    sampling = sample.sampling
    return pb.SamplingRow(
        entry=sample.entry,
        row=sample.row,
        seed=sampling.seed,
        child=sample.child,
        position=sample.position,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        forbidden_ids=sample.forbidden_ids,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_ids=[token_id for token_id, _ in sampling.logit_bias],
        biases=[bias for _, bias in sampling.logit_bias],
        top_logprobs=sampling.top_logprobs,
    )


def _ids_le(ids: TokenIds) -> bytes:
    """Write ids as little-endian unsigned 32-bit integers."""
    return np.ascontiguousarray(ids, dtype="<u4").tobytes()


LoadAction = SendLoad | SendEndLoad | SendCommitLoad | SendCancelLoad
"""What is done about a load, in the order of its life."""


def load_order(action: LoadAction) -> pb.AttachResponse:
    """Write an order about a load, which is the same for every stage."""
    match action:
        case SendLoad():
            load = pb.Load(
                load_id=action.load_id,
                digests=action.digests,
                timeout_ms=action.timeout_ms,
                host_ids=action.host_ids,
            )
            return pb.AttachResponse(load=load)
        case SendEndLoad():
            return pb.AttachResponse(end_load=pb.EndLoad(load_id=action.load_id))
        case SendCommitLoad():
            commit = pb.CommitLoad(load_id=action.load_id, page_ids=action.page_ids)
            return pb.AttachResponse(commit_load=commit)
        case SendCancelLoad():
            return pb.AttachResponse(cancel_load=pb.CancelLoad(load_id=action.load_id))


PageAction = SendStore | SendSavePages | SendCopyPages | SendRelease
"""What is done about pages of the pool, or about a row."""


def page_order(action: PageAction) -> pb.AttachResponse:
    """Write an order about pages or a row, which is the same for every stage."""
    match action:
        case SendStore():
            return pb.AttachResponse(store=_store(action))
        case SendSavePages():
            save = pb.SavePages(
                digests=action.digests, page_ids=action.page_ids, host_ids=action.host_ids
            )
            return pb.AttachResponse(save_pages=save)
        case SendCopyPages():
            copy = pb.CopyPages(source_ids=action.source_ids, target_ids=action.target_ids)
            return pb.AttachResponse(copy_pages=copy)
        case SendRelease():
            return pb.AttachResponse(release=pb.Release(row=action.row))


def stage_orders(
    action: LoadAction | PageAction, num_stages: int
) -> list[pb.AttachResponse | None]:
    """Write an order for each stage; None for those that it does not concern."""
    match action:
        case SendStore() | SendSavePages() | SendCopyPages() | SendRelease():
            return [page_order(action)] * num_stages
        case SendLoad() | SendCommitLoad() if action.held is not None:
            parts = [part_of(stage, action) for stage in range(num_stages)]
            return [None if part is None else load_order(part) for part in parts]
        case _:
            return [load_order(action)] * num_stages


def _store(action: SendStore) -> pb.Store:
    """Write a store."""
    return pb.Store(
        store_id=action.store_id,
        pages=[
            pb.StorePage(
                digest=page.digest,
                parent=page.parent,
                page_index=page.page_index,
                page_id=page.page_id,
                namespace=page.namespace,
            )
            for page in action.pages
        ],
        from_host=action.tier == "host",
        in_turn=action.in_turn,
    )


def acked_from(ack: pb.Ack, stage: int) -> events.Acked:
    """Read an Ack of a stage.

    Raises:
        InvariantViolated: its log-probabilities are not whole or not finite, or a time or an
            amount is none.
    """
    _check_amounts(ack, ("started_us", "acked_us", "restored_bytes", "restore_us"))
    try:
        return events.Acked(
            epoch=ack.epoch,
            stage=stage,
            seq_no=ack.seq_no,
            compute_ms=ack.compute_us / 1000,
            sampled_ids=tuple(ack.sampled_ids),
            without_choice=tuple(ack.without_choice),
            sampled_logprobs=tuple(map(_logprobs_from, ack.sampled_logprobs)),
            prompt_logprobs=tuple(map(_logprobs_from, ack.prompt_logprobs)),
            restored_bytes=ack.restored_bytes,
            restore_s=ack.restore_us / 1e6,
        )
    except ValueError as error:
        raise InvariantViolated(
            f"acknowledgement {ack.seq_no} of stage {stage}: log-probabilities: {error}"
        ) from error


def _check_amounts(message: pb.Ack | pb.LoadDone, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(message, name)
        if value > _MAX_AMOUNT:
            raise InvariantViolated(f"{name} is {value}, at most {_MAX_AMOUNT}")


def _logprobs_from(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    logprobs = from_message(message)
    if (
        not np.isfinite(logprobs.logprobs_T).all()
        or not np.isfinite(logprobs.top_logprobs_Tk).all()
    ):
        raise ValueError("not all are finite")
    return logprobs


def times_from(ack: pb.Ack) -> AckTimes:
    """Read when a stage worked on a microbatch."""
    return AckTimes(
        started_us=ack.started_us,
        acked_us=ack.acked_us,
        wait_us=ack.wait_us,
        compute_us=ack.compute_us,
        send_us=ack.send_us,
    )


def loaded_from(done: pb.LoadDone, epoch: int, stage: int) -> events.Loaded:
    """Read what a stage has read from Redis.

    Raises:
        InvariantViolated: a time or an amount is none.
    """
    _check_amounts(done, ("num_bytes", "took_us"))
    return events.Loaded(
        epoch=epoch,
        stage=stage,
        load_id=done.load_id,
        num_pages=done.num_pages,
        num_host_pages=min(done.num_host_pages, done.num_pages),
        num_bytes=done.num_bytes,
        took_s=done.took_us / 1e6,
        is_damaged=bool(done.bad_digests),
    )


def stored_from(done: pb.StoreDone, epoch: int, stage: int) -> events.Stored:
    """Read what a stage has written to Redis."""
    return events.Stored(
        epoch=epoch, stage=stage, store_id=done.store_id, stored=tuple(done.stored)
    )
