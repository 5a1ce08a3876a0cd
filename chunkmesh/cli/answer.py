"""Follows one Generate call to its end: shows progress and text, returns what came of it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console

from chunkmesh.cli.prefill_bar import PrefillBar
from chunkmesh.errors import Unavailable
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
        ChunkMeshError: the call failed; text that came before has been written.
    """
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
                        _write(text_to, reply.chunk.text)
                case "complete":
                    bar.hide()
                    outputs[reply.complete.index] = reply.complete
                    while (complete := outputs.get(num_shown)) is not None:
                        label = "" if num_outputs == 1 else f"[{num_shown}] "
                        _write(text_to, f"{label}{complete.text[num_written:]}\n")
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


def _write(text_to: TextIO | None, text: str) -> None:
    if text_to is not None and text:
        text_to.write(text)
        text_to.flush()
