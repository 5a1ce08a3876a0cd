"""The command `chunkmesh generate`: one prompt in, its continuation out."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.cli.answer import follow
from chunkmesh.cli.answer_json import as_json
from chunkmesh.cli.exits import parse_server, reported
from chunkmesh.cli.flags import CacheSalt, Server
from chunkmesh.cli.generate_request import chat_of, read_input_ids, read_prompt
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.sampling_flags import SamplingOptions, takes_sampling
from chunkmesh.v1 import generation_pb2 as pb

app = typer.Typer()


@app.command()
@takes_sampling
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt.")] = None,
    *,
    prompt_file: Annotated[
        Path | None, typer.Option(help="Read the prompt from a UTF-8 file; - is standard input.")
    ] = None,
    input_ids: Annotated[
        Path | None, typer.Option(help="Read the prompt's token ids from a JSON list.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as the user's message of a chat.")
    ] = False,
    answer_start: Annotated[
        str | None, typer.Option(help="Begin of the answer, which goes on from there; for --chat.")
    ] = None,
    server: Server = "127.0.0.1:50051",
    cache_salt: CacheSalt = "",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, nothing before.")
    ] = False,
    sampling: SamplingOptions,
) -> None:
    """Continue a prompt. Text streams to standard output; Ctrl-C cancels the request."""
    params = sampling.message()
    if not json_output and (params.logprobs or params.prompt_logprobs):
        raise typer.BadParameter("log-probabilities are printed with --json only")
    address = parse_server(server)
    num_outputs = sampling.n or 1
    with reported():
        request = _with_input(prompt, prompt_file, input_ids, chat=chat)
        if answer_start is not None:
            _start_answer(request, answer_start)
        request.sampling_params.CopyFrom(params)
        request.stream = num_outputs == 1 and not json_output
        request.return_progress = sys.stderr.isatty()
        request.cache_salt = cache_salt
        with GenerationClient(address) as client, closing(client.generate(request)) as replies:
            text_to = None if json_output else sys.stdout
            answer = follow(replies, text_to=text_to, num_outputs=num_outputs)
        if json_output:
            print(as_json(answer))


def _with_input(
    prompt: str | None, prompt_file: Path | None, input_ids: Path | None, *, chat: bool
) -> pb.GenerateRequest:
    """Return a request that holds its input.

    Raises:
        typer.BadParameter: not exactly one input was given.
        ConfigError: a file cannot be read.
    """
    if sum(given is not None for given in (prompt, prompt_file, input_ids)) != 1:
        raise typer.BadParameter("give exactly one of PROMPT, --prompt-file and --input-ids")
    if input_ids is not None:
        if chat:
            raise typer.BadParameter("--chat needs text, not --input-ids")
        return pb.GenerateRequest(input_ids_le=read_input_ids(input_ids))
    text = read_prompt(prompt_file) if prompt_file is not None else prompt or ""
    if chat:
        return pb.GenerateRequest(chat=chat_of(("user", text)))
    return pb.GenerateRequest(text=text)


def _start_answer(request: pb.GenerateRequest, text: str) -> None:
    """Let a chat's output go on with text.

    Raises:
        typer.BadParameter: the prompt is no chat.
    """
    if not request.HasField("chat"):
        raise typer.BadParameter("--answer-start needs --chat")
    request.chat.messages.add(role="assistant", content=text)
    request.chat.continue_final_message = True
