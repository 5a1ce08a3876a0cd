"""A progress bar on standard error while a prompt is prefilled; nothing where nobody looks."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from chunkmesh.v1 import generation_pb2 as pb


class PrefillBar:
    """Shows progress messages; gone as soon as the first output comes."""

    def __init__(self, console: Console) -> None:
        """Draw on console, if it is a terminal."""
        self._progress = Progress(
            TextColumn("prefill"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f} tokens"),
            TextColumn("{task.fields[note]}", style="dim"),
            TimeElapsedColumn(),
            TextColumn("so far"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("prefill", start=True, total=0, note="")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hide()

    def show(self, progress: pb.PromptProgress) -> None:
        """Draw one progress message."""
        self._progress.update(
            self._task,
            total=progress.total,
            completed=progress.processed,
            note=describe(progress),
        )
        self._progress.start()

    def hide(self) -> None:
        """Clear the bar; calling it again does nothing."""
        self._progress.stop()


def describe(progress: pb.PromptProgress) -> str:
    """Say what the bar's length does not."""
    parts = [f"chunk {progress.chunk_index}/{progress.chunks_planned}"]
    if progress.cached:
        parts.append(f"{progress.cached} cached")
    if progress.eta_ms:
        parts.append(f"{progress.eta_ms / 1000:.1f} s left")
    return ", ".join(parts)
