"""Follows one Generate call to its end: shows progress and text, returns the complete message."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console

from chunkmesh.cli.prefill_bar import PrefillBar
from chunkmesh.errors import Unavailable
from chunkmesh.v1 import generation_pb2 as pb

_FINISH_REASONS = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_ABORT: "abort",
}


def follow(
    replies: Iterable[pb.GenerateResponse], *, text_to: TextIO | None = None
) -> pb.GenerateComplete:
    """Write text to text_to as it comes, ending with a newline; None writes nothing.

    Raises:
        ChunkMeshError: the call failed; text that came before has been written.
    """
    num_written = 0
    with PrefillBar(Console(file=sys.stderr)) as bar:
        for reply in replies:
            match reply.WhichOneof("event"):
                case "progress":
                    bar.show(reply.progress)
                case "chunk":
                    bar.hide()
                    num_written += len(reply.chunk.text)
                    _write(text_to, reply.chunk.text)
                case "complete":
                    bar.hide()
                    _write(text_to, reply.complete.text[num_written:] + "\n")
                    return reply.complete
                case _:
                    pass
    raise Unavailable("the scheduler ended the call without a complete message")


def _write(text_to: TextIO | None, text: str) -> None:
    if text_to is not None and text:
        text_to.write(text)
        text_to.flush()


def as_json(complete: pb.GenerateComplete) -> str:
    """Return the object that `chunkmesh generate --json` prints."""
    return json.dumps(
        {
            "text": complete.text,
            "output_ids": list(complete.output_ids),
            "prompt_tokens": complete.prompt_tokens,
            "cached_tokens": complete.cached_tokens,
            "completion_tokens": complete.completion_tokens,
            "finish_reason": _FINISH_REASONS.get(complete.finish_reason),
            "ttft_ms": complete.ttft_ms,
            "e2e_ms": complete.e2e_ms,
            "chunks": list(complete.chunk_tokens),
        },
        ensure_ascii=False,
    )
