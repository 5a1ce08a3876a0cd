"""The command `chunkmesh generate`: one prompt in, its continuation out."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.cli.answer import as_json, follow
from chunkmesh.cli.exits import parse_server, reported
from chunkmesh.cli.flags import (
    CacheSalt,
    IgnoreEos,
    MaxNewTokens,
    MinP,
    Seed,
    Server,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from chunkmesh.cli.generate_request import SamplingOptions, chat_of, read_input_ids, read_prompt
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.v1 import generation_pb2 as pb

app = typer.Typer()


@app.command()
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
    server: Server = "127.0.0.1:50051",
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    cache_salt: CacheSalt = "",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, nothing before.")
    ] = False,
) -> None:
    """Continue a prompt. Text streams to standard output; Ctrl-C cancels the request."""
    sampling = SamplingOptions(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    address = parse_server(server)
    with reported():
        request = _with_input(prompt, prompt_file, input_ids, chat=chat)
        request.sampling_params.CopyFrom(sampling.message())
        request.stream = not json_output
        request.return_progress = sys.stderr.isatty()
        request.cache_salt = cache_salt
        with GenerationClient(address) as client, closing(client.generate(request)) as replies:
            complete = follow(replies, text_to=None if json_output else sys.stdout)
        if json_output:
            print(as_json(complete))


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
