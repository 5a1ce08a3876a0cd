"""The command `chunkmesh generate`: one prompt in, its continuation out."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.cli.answer import follow
from chunkmesh.cli.answer_json import as_json
from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.exits import reported
from chunkmesh.cli.flags import CacheSalt, Priority
from chunkmesh.cli.generate_request import STANDARD_INPUT, chat_of, read_input_ids, read_prompt
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.cli.sampling_flags import OutputOptions, SamplingOptions
from chunkmesh.cli.server_options import SchedulersOptions
from chunkmesh.v1 import generation_pb2 as pb

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt. Default: what is piped in.")
    ] = None,
    *,
    prompt_file: Annotated[
        Path | None, typer.Option(help="Read the prompt from a UTF-8 file; - is standard input.")
    ] = None,
    input_ids: Annotated[
        Path | None,
        typer.Option(help="Read the prompt's token ids from a JSON list; - is standard input."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as the user's message of a chat.")
    ] = False,
    answer_start: Annotated[
        str | None, typer.Option(help="Begin of the answer, which goes on from there; for --chat.")
    ] = None,
    request_id: Annotated[
        str,
        typer.Option(
            metavar="ID", help="Name it, for chunkmesh trace. Default: the scheduler does."
        ),
    ] = "",
    priority: Priority = 0,
    cache_salt: CacheSalt = "",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, nothing before.")
    ] = False,
    to: SchedulersOptions,
    sampling: SamplingOptions,
    outputs: OutputOptions,
) -> None:
    """Continue a prompt. Text streams to standard output; Ctrl-C cancels the request."""
    params = sampling.message()
    params.MergeFrom(outputs.message())
    if not json_output and (params.logprobs or params.prompt_logprobs):
        raise typer.BadParameter("log-probabilities are printed with --json only")
    with reported():
        request = _with_input(prompt, prompt_file, input_ids, chat=chat)
        if answer_start is not None:
            _start_answer(request, answer_start)
        request.request_id = request_id
        request.priority = priority
        request.sampling_params.CopyFrom(params)
        request.stream = outputs.num_outputs == 1 and not json_output
        request.return_progress = sys.stderr.isatty()
        request.cache_salt = cache_salt
        try:
            with GenerationClient(to.servers()) as client:
                _run(request, client, num_outputs=outputs.num_outputs, json_output=json_output)
        except KeyboardInterrupt:
            sys.stderr.write("[stopped]\n" if json_output else "\n[stopped]\n")
            raise


def _run(
    request: pb.GenerateRequest, client: GenerationClient, *, num_outputs: int, json_output: bool
) -> None:
    """Run the request and print what comes of it.

    Raises:
        ChunkMeshError: it failed.
    """
    wants_ids = request.sampling_params.prompt_logprobs
    prompt_ids = client.prompt_ids(request) if wants_ids else ()
    with closing(client.generate(request)) as replies:
        text_to = None if json_output else sys.stdout
        answer = follow(replies, text_to=text_to, num_outputs=num_outputs)
    if json_output:
        print(as_json(answer, prompt_ids))


def _with_input(
    prompt: str | None, prompt_file: Path | None, input_ids: Path | None, *, chat: bool
) -> pb.GenerateRequest:
    """Return a request that holds its input.

    Raises:
        typer.BadParameter: not exactly one input was given, or it is empty.
        ConfigError: a file cannot be read.
    """
    num_given = sum(given is not None for given in (prompt, prompt_file, input_ids))
    is_piped = num_given == 0 and sys.stdin is not None and not sys.stdin.isatty()
    if is_piped:
        prompt_file = STANDARD_INPUT
    elif num_given != 1:
        raise typer.BadParameter("give exactly one of PROMPT, --prompt-file and --input-ids")
    if input_ids is not None:
        if chat:
            raise typer.BadParameter("--chat needs text, not --input-ids")
        return pb.GenerateRequest(input_ids_le=read_input_ids(input_ids))
    text = read_prompt(prompt_file) if prompt_file is not None else prompt
    if not text:
        where = "; give PROMPT, --prompt-file or --input-ids, or pipe it in" if is_piped else ""
        raise typer.BadParameter(f"the prompt is empty{where}")
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
