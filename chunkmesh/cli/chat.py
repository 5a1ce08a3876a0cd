"""The command `chunkmesh chat`: a conversation, kept in memory and sent whole with each turn."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from chunkmesh.cli.answer import follow
from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.exits import print_error, reported, status_of
from chunkmesh.cli.flags import MAX_UINT32, CacheSalt, Priority
from chunkmesh.cli.generate_request import chat_of
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.cli.sampling_flags import SamplingOptions
from chunkmesh.cli.server_options import SchedulersOptions
from chunkmesh.errors import ChunkMeshError
from chunkmesh.v1 import generation_pb2 as pb


class Conversation:
    """The messages so far; a turn that fails or is cancelled leaves them unchanged."""

    def __init__(self, system: str | None) -> None:
        """Begin with the system message, if there is one."""
        self._opening = [] if system is None else [("system", system)]
        self._messages = list(self._opening)

    def reset(self) -> None:
        """Forget all turns."""
        self._messages = list(self._opening)

    def asked(self, text: str) -> pb.Chat:
        """Return the chat that asks text next."""
        return chat_of(*self._messages, ("user", text))

    def answered(self, text: str, answer: str) -> None:
        """Keep a finished turn."""
        self._messages += [("user", text), ("assistant", answer)]


app = typer.Typer()


@app.command(cls=Command)
@takes_options
def chat(
    *,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    priority: Priority = 0,
    cache_salt: CacheSalt = "",
    max_new_tokens: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=MAX_UINT32, help="Most new tokens of an answer."),
    ] = 512,
    to: SchedulersOptions,
    sampling: SamplingOptions,
) -> None:
    """Talk with the model. /reset forgets the conversation, /exit or Ctrl-D leaves.

    Ctrl-C stops an answer. Piped input is read a line a turn and ends at the first failed one.
    """
    params = dataclasses.replace(sampling, max_new_tokens=max_new_tokens).message()
    interactive = sys.stdin.isatty()
    conversation = Conversation(system)
    with reported(), GenerationClient(to.servers()) as client:
        for line in _lines(interactive=interactive):
            if line == "/reset":
                conversation.reset()
                continue
            request = pb.GenerateRequest(
                chat=conversation.asked(line),
                sampling_params=params,
                stream=True,
                return_progress=sys.stderr.isatty(),
                priority=priority,
                cache_salt=cache_salt,
            )
            answer = _turn(client, request, interactive=interactive)
            if answer is not None:
                conversation.answered(line, answer)


def _turn(
    client: GenerationClient, request: pb.GenerateRequest, *, interactive: bool
) -> str | None:
    """Write one answer and return it; None if it was stopped or failed and talk goes on."""
    try:
        with closing(client.generate(request)) as replies:
            return follow(replies, text_to=sys.stdout).outputs[0].text
    except KeyboardInterrupt:
        if not interactive:
            raise
        print("\n[stopped]")
    except ChunkMeshError as error:
        print_error(error)
        if not interactive:
            raise typer.Exit(status_of(error)) from error
    return None


def _lines(*, interactive: bool) -> Iterator[str]:
    """Yield what the user says until /exit or the end of input; empty lines are passed over."""
    source = _prompted() if interactive else sys.stdin
    for line in source:
        text = line.strip()
        if text == "/exit":
            return
        if text:
            yield text


def _prompted() -> Iterator[str]:
    import readline  # noqa: F401, PLC0415 - gives input() its line editing, for people only

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
