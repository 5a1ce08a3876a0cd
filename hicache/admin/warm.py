"""The command `hicache-admin warm`: runs prompts through a scheduler so that they are cached."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, TypeVar, cast

import grpc
import typer
from rich.console import Console
from rich.progress import Progress

from chunkmesh.address import HostPort
from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.errors import ChunkMeshError
from chunkmesh.status import from_rpc_error
from chunkmesh.v1 import generation_pb2
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import ANSWER_S, DAY_S, WORK_S, Generation, HiCache, ask, ask_scheduler
from hicache.admin.consent import Consent
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND, address, fail, unicode_text
from hicache.admin.output import print_values, visible
from hicache.admin.warm_file import read_warm_file

_T = TypeVar("_T")

app = typer.Typer()
_SETTLE_S = 10.0
"""How long to wait for pages that workers store in the background."""
_LOOK_S = 0.2


@dataclasses.dataclass(slots=True, kw_only=True)
class _Tally:
    """What became of the prompts."""

    num_prompts: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the mesh took from the cache."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """A prompt and its pages that were not usable before it ran."""

    request: generation_pb2.TokenizeRequest
    num_tokens: int
    new_digests: frozenset[bytes]


class _Calls:
    """The calls of all threads; once they are cancelled, one that has just begun is so too."""

    def __init__(self) -> None:
        self._calls: list[grpc.Call] = []
        self._are_over = threading.Event()

    def add(self, call: grpc.Call) -> None:
        """Take a call, and cancel it if it comes too late."""
        self._calls.append(call)
        if self._are_over.is_set():
            call.cancel()

    def cancel(self) -> None:
        """Cancel all."""
        self._are_over.set()
        for call in self._calls:
            call.cancel()


@app.command(cls=Command)
@takes_options
def warm(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="Prompts: one a line; in a .jsonl file a string or an object with text, input_ids "
            "or messages, and perhaps cache_salt."
        ),
    ],
    *,
    whole: Annotated[bool, typer.Option("--whole", help="The file is one prompt.")] = False,
    chat_role: flags.ChatRole = None,
    cache_salt: flags.CacheSalt = "",
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Prompts at the same time.")
    ] = 1,
    scheduler: flags.Scheduler = flags.SCHEDULER,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Run prompts for one token each, so that their pages are stored; tell how many were new."""
    consent.check()
    where = address("--scheduler", scheduler)
    salt = unicode_text("--cache-salt", cache_salt)
    requests = read_warm_file(file, whole=whole, cache_salt=salt, chat_role=chat_role)
    if not requests:
        fail(f"{file} holds no prompt", EXIT_NOT_FOUND)
    prompts = [_look_up(context, where, request) for request in requests]
    new_digests = frozenset[bytes]().union(*(prompt.new_digests for prompt in prompts))
    consent.ask_unless_dry(f"Run {len(prompts)} prompts, which add up to {len(new_digests)} pages?")
    tally = _Tally(num_prompts=len(prompts))
    if consent.dry_run:
        tally.prompt_tokens = sum(prompt.num_tokens for prompt in prompts)
        num_new = len(new_digests)
    else:
        ask_scheduler(where, lambda scheduler: _run(scheduler, prompts, tally, concurrency))
        num_new = ask(context, lambda hicache: _settled(hicache, new_digests))
    values = {"dry_run": consent.dry_run, **dataclasses.asdict(tally), "num_new_pages": num_new}
    print_values(values, as_json=as_json)
    if tally.num_failed:
        raise typer.Exit(EXIT_ERROR)
    if num_new < len(new_digests):
        fail(
            f"{len(new_digests) - num_new} pages are not usable: Redis is away or full, a quota or "
            "the budget is too small, or the mesh has them on its devices and has looked a moment "
            "ago whether they are stored"
        )


def _look_up(
    context: typer.Context, where: HostPort, request: generation_pb2.TokenizeRequest
) -> _Prompt:
    """Find out which pages of a prompt are not usable yet."""
    known = ask_scheduler(where, lambda scheduler: scheduler.Tokenize(request, timeout=WORK_S))
    digests = frozenset(known.page_digests)
    usable = ask(context, lambda hicache: _usable(hicache, digests))
    return _Prompt(request=request, num_tokens=len(known.input_ids), new_digests=digests - usable)


def _run(
    scheduler: Generation, prompts: Sequence[_Prompt], tally: _Tally, concurrency: int
) -> None:
    """Run all prompts, several at the same time, and count; Ctrl-C ends those that run, too."""
    console = Console(stderr=True)
    calls = _Calls()

    def run(prompt: _Prompt) -> generation_pb2.GenerateComplete | ChunkMeshError:
        return _run_one(scheduler, prompt, calls)

    with (
        ThreadPoolExecutor(concurrency) as threads,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("running prompts", total=len(prompts))
        try:
            runs = [threads.submit(run, prompt) for prompt in prompts]
            for prompt, ended in zip(prompts, map(_awaited, runs), strict=True):
                if isinstance(ended, ChunkMeshError):
                    tally.num_failed += 1
                    said = f"a prompt of {prompt.num_tokens} tokens failed: {ended}"
                    console.print(visible(said), markup=False)
                else:
                    tally.prompt_tokens += ended.prompt_tokens
                    tally.cached_tokens += ended.cached_tokens
                progress.advance(task)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            calls.cancel()


def _awaited(run: Future[_T]) -> _T:
    """Return a result; looks up now and then: Ctrl-C just before a wait does not end it."""
    while not run.done():
        wait([run], timeout=_LOOK_S)
    return run.result()


def _run_one(
    scheduler: Generation, prompt: _Prompt, calls: _Calls
) -> generation_pb2.GenerateComplete | ChunkMeshError:
    request = generation_pb2.GenerateRequest(
        cache_salt=prompt.request.cache_salt,
        sampling_params=generation_pb2.SamplingParams(max_new_tokens=1, ignore_eos=True),
    )
    if prompt.request.HasField("input_ids"):
        request.input_ids.CopyFrom(prompt.request.input_ids)
    elif prompt.request.HasField("chat"):
        request.chat.CopyFrom(prompt.request.chat)
    else:
        request.text = prompt.request.text
    complete = generation_pb2.GenerateComplete()
    responses = scheduler.Generate(request, timeout=DAY_S)
    calls.add(cast("grpc.Call", responses))
    try:
        for response in responses:
            if response.HasField("complete"):
                complete = response.complete
    except grpc.RpcError as error:
        return from_rpc_error(error)
    return complete


def _settled(hicache: HiCache, wanted: frozenset[bytes]) -> int:
    """Count the pages that have become usable, once all are or the wait is over."""
    usable: frozenset[bytes] = frozenset()
    ends_s = time.monotonic() + _SETTLE_S
    while True:
        usable |= _usable(hicache, wanted - usable)
        if usable == wanted or time.monotonic() >= ends_s:
            return len(usable)
        time.sleep(_LOOK_S)


def _usable(hicache: HiCache, digests: frozenset[bytes]) -> frozenset[bytes]:
    """Return those of the pages that are stored for all layers."""
    ordered = tuple(digests)
    reply = hicache.Lookup(pb.LookupRequest(digests=ordered), timeout=ANSWER_S)
    pages = zip(ordered, reply.pages, strict=True)
    return frozenset(digest for digest, page in pages if page.visible)
