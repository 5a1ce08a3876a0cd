"""Runs of pages as tree and top show them."""

from __future__ import annotations

import sys

import typer

from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin.calls import WORK_S, ask
from hicache.admin.output import layer_pairs, layers_text, short
from hicache.admin.units import duration_text, size_text

HEAD = ("last page", "layers", "usable", "bytes", "hits", "idle", "leased", "pinned")


def listed(context: typer.Context, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
    """Ask for runs."""
    return ask(context, lambda hicache: hicache.ListRuns(request, timeout=WORK_S))


def values(reply: pb.ListRunsResponse) -> dict[str, object]:
    """Return what --json prints."""
    return {"runs": [_run(run) for run in reply.runs], "num_left_off": reply.num_left_off}


def pages_text(run: pb.Run) -> str:
    """Return which pages of a prompt it holds."""
    last = run.first_page + run.num_pages - 1
    return f"{run.first_page}-{last}" if run.num_pages > 1 else f"{run.first_page}"


def columns(run: pb.Run) -> tuple[str, ...]:
    """Return what stands under HEAD."""
    return (
        short(run.last_digest),
        layers_text(run.layers) or "none",
        "yes" if run.visible else "no",
        size_text(run.num_bytes),
        str(run.num_hits),
        duration_text(run.idle_ms),
        str(run.num_leased_pages),
        str(run.num_pinned_pages),
    )


def print_left_off(reply: pb.ListRunsResponse) -> None:
    """Say how many runs the limit cut off, if any."""
    if reply.num_left_off:
        sys.stdout.write(f"{reply.num_left_off} more; --limit N shows them\n")


def _run(run: pb.Run) -> dict[str, object]:
    return {
        "namespace": run.namespace.hex(),
        "first_digest": run.first_digest.hex(),
        "last_digest": run.last_digest.hex(),
        "first_page": run.first_page,
        "num_pages": run.num_pages,
        "depth": run.depth,
        "num_children": run.num_children,
        "num_bytes": run.num_bytes,
        "layers": layer_pairs(run.layers),
        "visible": run.visible,
        "num_hits": run.num_hits,
        "idle_ms": run.idle_ms,
        "num_leased_pages": run.num_leased_pages,
        "num_pinned_pages": run.num_pinned_pages,
        "priority": run.priority,
    }
