"""The command hicache-admin: looks into the prefix cache, and empties it.

Exit status: 0 done, 1 a service cannot be reached or refuses, 2 wrong usage, 3 nothing found.
With --json each command prints one object whose keys are stable.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Never, TypeVar, cast

import grpc
import rich
import rich.table
import typer

from chunkmesh import __version__
from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError, InvalidRequest
from chunkmesh.grpc_client import channel
from chunkmesh.status import DETAILS_KEY, from_rpc_error
from chunkmesh.v1 import generation_pb2, generation_pb2_grpc, hicache_pb2, hicache_pb2_grpc
from hicache.page_runs import PageRun, page_runs

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
_ANSWER_S = 10.0
_CLEAR_S = 600.0

_WRONG_ADDRESS = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED})

_T = TypeVar("_T")
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

app = typer.Typer(
    help="Look into the prefix cache, and empty it.", no_args_is_help=True, add_completion=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    hicache: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="CHUNKMESH_HICACHE", help="HiCache server.")
    ] = "127.0.0.1:50071",
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    context.obj = _address("--hicache", hicache)


@app.command()
def stats(context: typer.Context, as_json: _Json = False) -> None:
    """Count pages, bytes, leases and hits, and say how Redis is."""
    reply = _ask(context.obj, lambda hicache: hicache.GetStats(_stats_request(), timeout=_ANSWER_S))
    values = {field.name: getattr(reply, field.name) for field in reply.DESCRIPTOR.fields}
    _print(values, as_json=as_json)


@app.command()
def ping(context: typer.Context, as_json: _Json = False) -> None:
    """Ask whether the server and its Redis answer; status 1 if one does not."""
    started_s = time.perf_counter()
    reply = _ask(context.obj, lambda hicache: hicache.GetStats(_stats_request(), timeout=_ANSWER_S))
    values = {
        "round_trip_ms": round((time.perf_counter() - started_s) * 1000, 1),
        "redis": "down" if reply.redis_fault else "up",
        "redis_fault": reply.redis_fault,
        "redis_version": reply.redis_version,
        "rebuilding": reply.rebuilding,
    }
    _print(values, as_json=as_json)
    if reply.redis_fault:
        raise typer.Exit(EXIT_ERROR)


@app.command()
def clear(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: _Json = False,
) -> None:
    """Delete all pages, in the index and in Redis."""
    if yes == dry_run:
        _fail("give either --yes, which deletes all pages, or --dry-run", EXIT_USAGE)
    request = hicache_pb2.ClearRequest(dry_run=dry_run)
    reply = _ask(context.obj, lambda hicache: hicache.Clear(request, timeout=_CLEAR_S))
    values = {"dry_run": dry_run, "num_pages": reply.num_pages, "num_bytes": reply.num_bytes}
    _print(values, as_json=as_json)


@app.command()
def lookup(
    context: typer.Context,
    *,
    text: Annotated[str | None, typer.Option(help="The prompt.")] = None,
    prompt_file: Annotated[
        pathlib.Path | None, typer.Option(metavar="FILE", help="File with the prompt.")
    ] = None,
    tokens: Annotated[
        pathlib.Path | None, typer.Option(metavar="FILE", help="File with a JSON list of ids.")
    ] = None,
    cache_salt: Annotated[str, typer.Option(help="Salt that the requests carry.")] = "",
    scheduler: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Scheduler, which knows the tokenizer.")
    ] = "127.0.0.1:50051",
    as_json: _Json = False,
) -> None:
    """Say how much of a prompt is cached, page range by page range; status 3 if nothing is."""
    request = _tokenize_request(text, prompt_file, tokens)
    request.cache_salt = cache_salt
    users = _address("--scheduler", scheduler)
    tokenized = _run(users, "--scheduler", _tokenize(users, request))
    digests = tokenized.page_digests
    reply = _ask(
        context.obj,
        lambda hicache: hicache.Lookup(
            hicache_pb2.LookupRequest(digests=digests), timeout=_ANSWER_S
        ),
    )
    runs = page_runs(reply.pages)
    num_tokens, page_tokens = len(tokenized.input_ids), tokenized.page_tokens
    cached_tokens = reply.num_matched * page_tokens
    hit_pages = min(reply.num_matched, (num_tokens - 1) // page_tokens) if page_tokens else 0
    values = {
        "num_tokens": num_tokens,
        "page_tokens": page_tokens,
        "num_pages": len(digests),
        "cached_tokens": cached_tokens,
        "hit_tokens": hit_pages * page_tokens,
        "pages": [dataclasses.asdict(run) for run in runs],
    }
    if as_json:
        _print(values, as_json=True)
    else:
        _print({name: values[name] for name in values if name != "pages"}, as_json=False)
        if runs:
            rich.print(_table(runs))
    if not any(run.layers for run in runs):
        raise typer.Exit(EXIT_NOT_FOUND)


def main() -> None:
    """Run the command line."""
    app()


def _tokenize_request(
    text: str | None, prompt_file: pathlib.Path | None, tokens: pathlib.Path | None
) -> generation_pb2.TokenizeRequest:
    if sum(given is not None for given in (text, prompt_file, tokens)) != 1:
        _fail("give one of --text, --prompt-file and --tokens", EXIT_USAGE)
    try:
        if tokens is not None:
            ids = generation_pb2.TokenIds(ids=json.loads(tokens.read_text()))
            return generation_pb2.TokenizeRequest(input_ids=ids)
        if prompt_file is not None:
            text = prompt_file.read_text(encoding="utf-8")
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}", EXIT_USAGE)
    except (ValueError, TypeError) as error:
        _fail(f"{tokens or prompt_file}: {error}", EXIT_USAGE)
    return generation_pb2.TokenizeRequest(text=text or "")


async def _tokenize(
    address: HostPort, request: generation_pb2.TokenizeRequest
) -> generation_pb2.TokenizeResponse:
    async with channel(address) as link:
        stub = generation_pb2_grpc.GenerationStub(link)
        return await stub.Tokenize(request, timeout=_ANSWER_S)


def _stats_request() -> hicache_pb2.GetStatsRequest:
    return hicache_pb2.GetStatsRequest()


def _ask(address: HostPort, call: Callable[[Any], Awaitable[_T]]) -> _T:
    async def ask() -> _T:
        async with channel(address) as link:
            return await call(hicache_pb2_grpc.HiCacheStub(link))

    return _run(address, "--hicache", ask())


def _run(address: HostPort, flag: str, work: Awaitable[_T]) -> _T:
    """Wait for a call to address, which flag names."""

    async def bounded() -> _T:
        return await work

    try:
        return asyncio.run(bounded())
    except grpc.RpcError as error:
        if error.code() in _WRONG_ADDRESS and not _said_by_server(error):
            said = f"no answer from {address} ({error.details()})"
            _fail(f"{said}: is it up? Name another with {flag} HOST:PORT", EXIT_ERROR)
        known = from_rpc_error(error)
        _fail(str(known), EXIT_USAGE if isinstance(known, InvalidRequest) else EXIT_ERROR)


def _said_by_server(error: grpc.RpcError) -> bool:
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    return any(key == DETAILS_KEY for key, _ in metadata)


def _address(flag: str, text: str) -> HostPort:
    try:
        return HostPort.parse(text)
    except ConfigError as error:
        _fail(f"{flag}: {error}", EXIT_USAGE)


def _fail(message: str, status: int) -> Never:
    sys.stderr.write(f"hicache-admin: {message}\n")
    raise typer.Exit(status)


def _print(values: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(values))
        return
    table = rich.table.Table(show_header=False, box=None)
    for name, value in values.items():
        table.add_row(name.removeprefix("num_").replace("_", " "), str(value))
    rich.print(table)


def _table(runs: tuple[PageRun, ...]) -> rich.table.Table:
    table = rich.table.Table("pages", "layers", "usable", "hits")
    for run in runs:
        usable = "yes" if run.visible else "no"
        table.add_row(
            f"{run.first}-{run.last - 1}", run.layers_text or "none", usable, str(run.num_hits)
        )
    return table
