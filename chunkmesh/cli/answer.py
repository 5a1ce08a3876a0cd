"""Follows one Generate call to its end: shows progress and text, returns what came of it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console

from chunkmesh.cli.prefill_bar import PrefillBar
from chunkmesh.errors import ChunkMeshError, Unavailable
from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that a call has brought."""

    request_id: str
    outputs: tuple[pb.GenerateComplete, ...]
    """By index."""
    prompt_logprobs: tuple[pb.PromptLogprobs, ...]
    """In order; empty unless asked for."""


def follow(
    replies: Iterable[pb.GenerateResponse], *, text_to: TextIO | None = None, num_outputs: int = 1
) -> Answer:
    """Write text to text_to, ending with a newline; None writes nothing.

    Of a single output the text is written as it comes; of several each one behind its index, as
    soon as it and all before it have ended.

    Raises:
        ChunkMeshError: the call failed; text that came before has been written, and a newline.
    """
    written = _Written(text_to)
    try:
        return _follow(replies, written, num_outputs)
    except ChunkMeshError:
        written.end_line()
        raise


def _follow(replies: Iterable[pb.GenerateResponse], written: _Written, num_outputs: int) -> Answer:
    outputs: dict[int, pb.GenerateComplete] = {}
    prompt_logprobs: list[pb.PromptLogprobs] = []
    num_written = num_shown = 0
    with PrefillBar(Console(file=sys.stderr)) as bar:
        for reply in replies:
            match reply.WhichOneof("event"):
                case "progress":
                    bar.show(reply.progress)
                case "prompt_logprobs":
                    prompt_logprobs.append(reply.prompt_logprobs)
                case "chunk":
                    bar.hide()
                    if num_outputs == 1:
                        num_written += len(reply.chunk.text)
                        written.add(reply.chunk.text)
                case "complete":
                    bar.hide()
                    outputs[reply.complete.index] = reply.complete
                    while (complete := outputs.get(num_shown)) is not None:
                        label = "" if num_outputs == 1 else f"[{num_shown}] "
                        written.add(f"{label}{complete.text[num_written:]}\n")
                        num_shown += 1
                case _:
                    pass
            if len(outputs) == num_outputs:
                return Answer(
                    request_id=reply.request_id,
                    outputs=tuple(outputs[index] for index in sorted(outputs)),
                    prompt_logprobs=tuple(prompt_logprobs),
                )
    raise Unavailable("the scheduler ended the call without all complete messages")


class _Written:
    """Owns what was written of an answer."""

    def __init__(self, to: TextIO | None) -> None:
        self._to = to
        self._is_at_begin = True
        """Of a line."""

    def add(self, text: str) -> None:
        """Write it at once."""
        if self._to is not None and text:
            self._to.write(text)
            self._to.flush()
            self._is_at_begin = text.endswith("\n")

    def end_line(self) -> None:
        """Let what comes next begin a line."""
        if not self._is_at_begin:
            self.add("\n")
