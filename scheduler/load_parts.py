"""What each stage is told of a load of which some stages hold a part already. Pure.

A worker that takes the place of a lost one has nothing of what was computed before; the others have
all of it. So for the leading pages of such a load it alone reads, and the others hear of the rest.
"""

from __future__ import annotations

import dataclasses

from scheduler.actions import SendCancelLoad, SendCommitLoad, SendLoad


def part_of(
    stage: int, action: SendLoad | SendCommitLoad
) -> SendLoad | SendCommitLoad | SendCancelLoad | None:
    """Return what a stage is told; None if it is told nothing."""
    return _load_of(stage, action) if isinstance(action, SendLoad) else _commit_of(stage, action)


def _load_of(stage: int, load: SendLoad) -> SendLoad | None:
    """Return a stage's own part of a load; None if it has nothing to read."""
    held = load.held
    if held is None:
        return load
    if stage in held.lacking:
        return dataclasses.replace(load, host_ids=load.host_ids[: held.num_host], held=None)
    digests, host_ids = load.digests[held.num_pages :], load.host_ids[held.num_pages :]
    if not digests:
        return None
    return dataclasses.replace(load, digests=digests, host_ids=host_ids, held=None)


def _commit_of(stage: int, commit: SendCommitLoad) -> SendCommitLoad | SendCancelLoad:
    """Return what a stage does with its own part of what a load has brought."""
    held = commit.held
    if held is None:
        return commit
    if stage in held.lacking:
        return dataclasses.replace(commit, held=None)
    page_ids = commit.page_ids[held.num_pages :]
    if not page_ids:
        return SendCancelLoad(epoch=commit.epoch, load_id=commit.load_id)
    return dataclasses.replace(commit, page_ids=page_ids, held=None)
