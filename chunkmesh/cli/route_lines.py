"""Routes and workers of a mesh as people read them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from chunkmesh.v1 import generation_pb2 as pb

_STATES = {
    pb.WORKER_STATE_JOINING: "joining",
    pb.WORKER_STATE_SPARE: "spare",
    pb.WORKER_STATE_LEAVING: "leaving",
}


def epoch_text(epoch: int) -> str:
    """Return the two halves of an epoch: the scheduler's term and the number within it."""
    return f"{epoch >> 32}.{epoch & 0xFFFF_FFFF}"


def routes_text(info: pb.GetServerInfoResponse) -> str:
    """Return how many routes there are, and how many workers are in none."""
    counts = Counter("standing" if route.stands else "forming" for route in info.routes)
    counts.update(
        _STATES[worker.state]
        for worker in info.workers
        if worker.state in {pb.WORKER_STATE_SPARE, pb.WORKER_STATE_LEAVING}
    )
    if counts["spare"] > 1:
        counts["spares"] = counts.pop("spare")
    parts = [f"{counts[word]} {word}" for word in ("standing", "forming") if counts[word]] or [
        "none"
    ]
    others = [f"{counts[word]} {word}" for word in ("spare", "spares", "leaving") if counts[word]]
    return ", ".join(parts + others)


def route_lines(info: pb.GetServerInfoResponse) -> Iterator[str]:
    """Yield a line for each route."""
    for route in info.routes:
        name = f"route {epoch_text(route.epoch)}"
        num_stages = len(route.worker_ids)
        stages = f"{num_stages} stage{'' if num_stages == 1 else 's'}"
        if not route.stands:
            yield f"{name}  {stages}, forms"
            continue
        yield (
            f"{name}  {stages}, stands for {route.stood_ms / 1000:.0f} s,"
            f" {route.num_requests_running} running,"
            f" {route.num_microbatches_in_flight} microbatches in flight,"
            f" {route.num_pages - route.free_pages} of {route.num_pages} pages in use"
        )


def place_text(worker: pb.WorkerInfo) -> str:
    """Return the stage that a worker is, or why it is none."""
    if not worker.HasField("stage_index"):
        return _STATES.get(worker.state, "spare")
    if worker.state == pb.WORKER_STATE_JOINING:
        return f"{worker.stage_index} joining"
    return str(worker.stage_index)
