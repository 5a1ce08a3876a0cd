"""How the engine's actions look in scenario files: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from chunkmesh.errors import ChunkMeshError, Unavailable
from scheduler.actions import (
    Action,
    CheckStored,
    CommitPages,
    Failed,
    FenceStage,
    Finished,
    HeldPages,
    InvalidatePages,
    MatchPrefix,
    Output,
    PageToStore,
    PlannedEntry,
    PlannedSample,
    Progress,
    PromptLogprobs,
    ReleaseLease,
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


def show(action: Action) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a kind
    """Return one line for an action."""
    match action:
        case SendMicrobatch():
            return _microbatch(action)
        case SendLoad(load_id=load_id, digests=digests, timeout_ms=timeout_ms):
            limit = f" in {timeout_ms} ms" if timeout_ms else ""
            host = f", host {_ids(action.host_ids)}" if action.host_ids else ""
            return f"load {load_id}: {len(digests)} pages{host}{limit}{_held(action.held)}"
        case SendEndLoad(load_id=load_id):
            return f"end-load {load_id}"
        case SendCommitLoad(load_id=load_id, page_ids=page_ids):
            return f"commit-load {load_id}: pages {_ids(page_ids)}{_held(action.held)}"
        case SendCancelLoad(load_id=load_id):
            return f"cancel-load {load_id}"
        case SendStore(store_id=store_id, pages=pages):
            place = " from host memory" if action.tier == "host" else ""
            turn = " in turn" if action.in_turn else ""
            return f"store {store_id}{turn}{place}: {_pages(pages)}"
        case SendSavePages(page_ids=page_ids, host_ids=host_ids):
            return f"save pages {_ids(page_ids)} to host {_ids(host_ids)}"
        case CommitPages(stage=stage, pages=pages):
            return f"commit-pages of stage {stage}: {_pages(pages)}"
        case SendCopyPages(source_ids=source_ids, target_ids=target_ids):
            return f"copy pages {_ids(source_ids)} to {_ids(target_ids)}"
        case SendRelease(row=row):
            return f"release row {row}"
        case FenceStage(stage=stage, reason=reason):
            return f"fence stage {stage}: {reason}"
        case MatchPrefix(digests=digests):
            return f"match {_name(action)}: {len(digests)} pages"
        case CheckStored(digests=digests):
            return f"check what is stored of {len(digests)} pages"
        case InvalidatePages(digests=digests):
            return f"invalidate {len(digests)} pages"
        case ReleaseLease(lease_id=lease_id):
            return f"release lease {lease_id}"
        case Progress():
            return _progress(action)
        case PromptLogprobs(request_id=request_id, start=start, logprobs=logprobs):
            return f"prompt-logprobs {request_id}: [{start},{start + len(logprobs)})"
        case Output(token_ids=token_ids, text=text):
            told = " with logprobs" if action.logprobs is not None else ""
            return f"output {_name(action)}: {list(token_ids)} {text!r}{told}"
        case Finished():
            return _finished(action)
        case Failed(request_id=request_id, error=error):
            return f"failed {request_id}: {show_error(error)}"


def _held(held: HeldPages | None) -> str:
    """Return who has which part of a load."""
    if held is None:
        return ""
    lacking = ",".join(map(str, held.lacking))
    host = f", of host {held.num_host}" if held.num_host else ""
    return f"; all but stage {lacking} have {held.num_pages}{host}"


def _name(action: MatchPrefix | Output | Finished) -> str:
    """Return the request, and which of its outputs if not the first."""
    return f"{action.request_id}/{action.child}" if action.child else action.request_id


def show_error(error: ChunkMeshError) -> str:
    """Return class, text and the time to wait."""
    shown = f"{type(error).__name__}: {error}"
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        shown += f" (again in {error.retry_after_s:g} s)"
    return shown


def _microbatch(action: SendMicrobatch) -> str:
    """Return entries, and behind each what is sampled and which prompt tokens are told."""
    targets = {each.entry: len(each.target_ids) for each in action.prompt_targets}
    shown = []
    for index, entry in enumerate(action.entries):
        text = f"{entry.request_id} r{entry.row} [{entry.start},{entry.start + entry.num_tokens})"
        if entry.new_page_ids:
            text += f" +pages {_ids(entry.new_page_ids)}"
        samples = [sample for sample in action.samples if sample.entry == index]
        if index in targets:
            text += f" targets [{entry.start + 1},{entry.start + 1 + targets[index]})"
        shown.append(" ".join([text, *(_sample(sample, entry) for sample in samples)]))
    predicted = "/".join(f"{ms:.3g}" for ms in action.predicted_ms)
    expected = f" in {predicted} ms" if predicted else ""
    return f"send {action.seq_no}: " + " | ".join(shown) + expected


def _sample(sample: PlannedSample, entry: PlannedEntry) -> str:
    """Return the position, and the row if it is another than the entry's."""
    shown = f"sample {sample.position}"
    if sample.row != entry.row:
        shown += f" of r{sample.row}"
    if sample.forbidden_ids:
        shown += f" not {list(sample.forbidden_ids)}"
    if sample.seen is not None:
        shown += f" seen {int(sample.seen.counts.sum())}"
    return shown


def _progress(action: Progress) -> str:
    """Return how far a prompt is."""
    return (
        f"progress {action.request_id}: {action.processed}/{action.total} tokens, "
        f"{action.cached} cached, chunk {action.chunk_index}/{action.chunks_planned}, "
        f"eta {action.eta_s:.2f} s"
    )


def _finished(action: Finished) -> str:
    """Return why a request ended."""
    matched = "" if action.matched_stop is None else f" {action.matched_stop!r}"
    if action.matched_token_id is not None:
        matched = f" id {action.matched_token_id}"
    preempted = f", preempted {action.num_preemptions}" if action.num_preemptions else ""
    if action.num_recoveries:
        preempted += f", recovered {action.num_recoveries}"
    return (
        f"finished {_name(action)}: {action.reason}{matched}, {action.cached_tokens} cached, "
        f"chunks {list(action.chunk_tokens)}{preempted}"
    )


def _pages(pages: Sequence[PageToStore]) -> str:
    """Return index@id of pages."""
    return " ".join(f"{page.page_index}@{page.page_id}" for page in pages)


def _ids(page_ids: Sequence[int]) -> str:
    """Return ids, runs as first-last."""
    runs: list[list[int]] = []
    for page_id in page_ids:
        if runs and page_id == runs[-1][1] + 1:
            runs[-1][1] = page_id
        else:
            runs.append([page_id, page_id])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)
