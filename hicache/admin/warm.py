"""The command `hicache-admin warm`: runs prompts through a scheduler so that they are cached."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import grpc
import typer
from rich.console import Console
from rich.progress import Progress

from chunkmesh.address import HostPort
from chunkmesh.status import from_rpc_error
from chunkmesh.v1 import generation_pb2
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import (
    ANSWER_S,
    WORK_S,
    Generation,
    HiCache,
    hicache_of,
    run,
    scheduler_at,
    told,
)
from hicache.admin.consent import Consent
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND, address, fail
from hicache.admin.output import print_values
from hicache.admin.warm_file import read_warm_file

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
    digests: tuple[bytes, ...]
    new_digests: frozenset[bytes]


@app.command()
def warm(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="Prompts: one a line; in a .jsonl file a string or an object with text or "
            "input_ids, and perhaps cache_salt."
        ),
    ],
    *,
    whole: Annotated[bool, typer.Option("--whole", help="The file is one prompt.")] = False,
    cache_salt: flags.CacheSalt = "",
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Prompts at the same time.")
    ] = 1,
    scheduler: flags.Scheduler = flags.SCHEDULER,
    dry_run: flags.DryRun = False,
    yes: flags.Yes = False,
    as_json: flags.Json = False,
) -> None:
    """Run prompts for one token each, so that their pages are stored; tell how many were new."""
    consent = Consent(dry_run=dry_run, yes=yes)
    consent.check()
    where = address("--scheduler", scheduler)
    requests = read_warm_file(file, whole=whole, cache_salt=cache_salt)
    if not requests:
        fail(f"{file} holds no prompt", EXIT_NOT_FOUND)
    if dry_run or not yes:
        prompts = run(_looked_up(context, where, requests))
        num_new = len(_union(prompts))
        consent.ask_unless_dry(f"Run {len(prompts)} prompts, which adds up to {num_new} pages?")
    if dry_run:
        tally = _Tally(
            num_prompts=len(prompts), prompt_tokens=sum(prompt.num_tokens for prompt in prompts)
        )
    else:
        tally, num_new = run(_warmed(context, where, requests, concurrency))
    values = {"dry_run": dry_run, **dataclasses.asdict(tally), "num_new_pages": num_new}
    print_values(values, as_json=as_json)
    if tally.num_failed:
        raise typer.Exit(EXIT_ERROR)


async def _looked_up(
    context: typer.Context,
    where: HostPort,
    requests: Iterable[generation_pb2.TokenizeRequest],
) -> list[_Prompt]:
    """Find out which pages of prompts are not usable yet."""
    async with scheduler_at(where) as generation, hicache_of(context) as hicache:
        prompts = []
        for request in requests:
            with told(where, "--scheduler"):
                known = await generation.Tokenize(request, timeout=WORK_S)
            digests = tuple(known.page_digests)
            with told(context.obj, "--hicache"):
                usable = await _usable(hicache, digests)
            prompts.append(
                _Prompt(
                    request=request,
                    num_tokens=len(known.input_ids),
                    digests=digests,
                    new_digests=frozenset(digests) - usable,
                )
            )
        return prompts


async def _warmed(
    context: typer.Context,
    where: HostPort,
    requests: Sequence[generation_pb2.TokenizeRequest],
    concurrency: int,
) -> tuple[_Tally, int]:
    """Run prompts; return what became of them and how many pages are usable that were not."""
    prompts = await _looked_up(context, where, requests)
    tally = _Tally(num_prompts=len(prompts))
    console = Console(stderr=True)
    slots = asyncio.Semaphore(concurrency)
    async with scheduler_at(where) as generation, hicache_of(context) as hicache:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("running prompts", total=len(prompts))

            async def run_one(prompt: _Prompt) -> None:
                async with slots:
                    await _run_prompt(generation, prompt, tally, console)
                progress.advance(task)

            await asyncio.gather(*map(run_one, prompts))
        with told(context.obj, "--hicache"):
            return tally, await _settled(hicache, _union(prompts))


async def _run_prompt(
    generation: Generation, prompt: _Prompt, tally: _Tally, console: Console
) -> None:
    request = generation_pb2.GenerateRequest(
        cache_salt=prompt.request.cache_salt,
        sampling_params=generation_pb2.SamplingParams(max_new_tokens=1, ignore_eos=True),
    )
    if prompt.request.HasField("input_ids"):
        request.input_ids.CopyFrom(prompt.request.input_ids)
    else:
        request.text = prompt.request.text
    try:
        async for response in generation.Generate(request):
            if response.HasField("complete"):
                tally.prompt_tokens += response.complete.prompt_tokens
                tally.cached_tokens += response.complete.cached_tokens
    except grpc.aio.AioRpcError as error:
        tally.num_failed += 1
        console.print(f"a prompt of {prompt.num_tokens} tokens failed: {from_rpc_error(error)}")


async def _settled(hicache: HiCache, wanted: frozenset[bytes]) -> int:
    """Count the pages that have become usable, once all are or the wait is over."""
    usable: set[bytes] = set()
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + _SETTLE_S
    while True:
        usable |= await _usable(hicache, sorted(wanted - usable))
        if len(usable) == len(wanted) or loop.time() >= ends_s:
            return len(usable)
        await asyncio.sleep(_LOOK_S)


async def _usable(hicache: HiCache, digests: Sequence[bytes]) -> set[bytes]:
    """Return those of the pages that are stored for all layers."""
    reply = await hicache.Lookup(pb.LookupRequest(digests=digests), timeout=ANSWER_S)
    return {digest for digest, page in zip(digests, reply.pages, strict=True) if page.visible}


def _union(prompts: Iterable[_Prompt]) -> frozenset[bytes]:
    return frozenset().union(*(prompt.new_digests for prompt in prompts))
