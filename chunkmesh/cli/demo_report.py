"""What the demo says of its requests: figures, links, timelines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.table import Table

from chunkmesh.cli import timeline_text
from chunkmesh.cli.timeline import Timeline
from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished request."""

    name: str
    complete: pb.GenerateComplete

    def timeline(self) -> Timeline:
        """Return when its stages worked."""
        return Timeline.of(self.complete)

    def prefill_tokens_per_s(self) -> float:
        """Return prompt tokens, cached ones included, by time to first token."""
        return _rate(self.complete.prompt_tokens, self.complete.ttft_ms)

    def decode_tokens_per_s(self) -> float:
        """Return tokens after the first by the time they took."""
        complete = self.complete
        return _rate(complete.completion_tokens - 1, complete.e2e_ms - complete.ttft_ms)

    def headline(self) -> str:
        """Return one line that says what happened."""
        complete = self.complete
        num_chunks = len(complete.chunk_tokens)
        return (
            f"{self.name}: {complete.prompt_tokens} tokens, {complete.cached_tokens} cached,"
            f" {num_chunks} {'chunk' if num_chunks == 1 else 'chunks'}, first token after"
            f" {complete.ttft_ms / 1000:.2f} s"
        )


def _rate(tokens: int, milliseconds: float) -> float:
    return tokens / milliseconds * 1000 if tokens > 0 and milliseconds > 0 else 0.0


def run_table(runs: Sequence[Run]) -> Table:
    """Return one row a request."""
    table = Table("request", caption="prefill tok/s counts cached tokens too")
    for column in ("prompt", "cached", "chunks", "TTFT s", "prefill tok/s", "decode tok/s"):
        table.add_column(column, justify="right")
    for run in runs:
        complete = run.complete
        table.add_row(
            run.name,
            str(complete.prompt_tokens),
            str(complete.cached_tokens),
            str(len(complete.chunk_tokens)),
            f"{complete.ttft_ms / 1000:.2f}",
            f"{run.prefill_tokens_per_s():.0f}",
            f"{run.decode_tokens_per_s():.1f}",
        )
    return table


def links_text(info: pb.GetServerInfoResponse) -> str:
    """Return one line a link between stages: its transport and round trip."""
    lines = [
        f"link stage {worker.stage_index} -> {worker.stage_index + 1}: transport"
        f" {worker.outbound.transport}, round trip {worker.outbound.rtt_us / 1000:.2f} ms"
        for worker in info.workers
        if worker.HasField("outbound")
    ]
    return "\n".join(lines) or "no links: the mesh has one stage"


def timelines_text(runs: Sequence[Run], *, width: int) -> str:
    """Return the timelines of some runs, one under the other."""
    parts = [f"\n{run.headline()}\n{timeline_text.draw(run.timeline(), width)}" for run in runs]
    return "\n".join(parts)
