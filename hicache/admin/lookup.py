"""The command `hicache-admin lookup`: how much of a prompt is cached, and on which layers."""

from __future__ import annotations

import dataclasses

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import ANSWER_S, ask
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND, fail
from hicache.admin.output import print_json, print_rows, print_values
from hicache.admin.prompts import GivenPrompt, tokenized
from hicache.page_runs import LayerReach, PageRun, layer_reach, page_runs

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def lookup(
    context: typer.Context,
    *,
    prompt: GivenPrompt,
    as_json: flags.Json = False,
) -> None:
    """Say how much of a prompt is cached, by layers and by pages; status 3 if nothing is."""
    known = tokenized(prompt)
    request = pb.LookupRequest(digests=known.page_digests)
    reply = ask(context, lambda hicache: hicache.Lookup(request, timeout=ANSWER_S))
    runs = page_runs(reply.pages)
    reach = layer_reach(reply.pages)
    num_tokens, page_tokens = len(known.input_ids), known.page_tokens
    hit_pages = min(reply.num_matched, (num_tokens - 1) // page_tokens)
    values: dict[str, object] = {
        "namespace": known.namespace.hex(),
        "num_tokens": num_tokens,
        "page_tokens": page_tokens,
        "num_pages": len(known.page_digests),
        "cached_tokens": reply.num_matched * page_tokens,
        "hit_tokens": hit_pages * page_tokens,
    }
    if as_json:
        values["layers"] = [
            {"first": each.first, "last": each.last, "cached_tokens": each.num_pages * page_tokens}
            for each in reach
        ]
        values["pages"] = [dataclasses.asdict(run) for run in runs]
        print_json(values)
    else:
        print_values(values, as_json=False)
        _print_tables(reach, runs, page_tokens)
    if not reply.num_matched and reply.pages and reply.pages[0].visible:
        fail("Redis does not answer hicache-server: until it does nothing is a hit", EXIT_ERROR)
    if not any(run.layers for run in runs):
        raise typer.Exit(EXIT_NOT_FOUND)


def _print_tables(
    reach: tuple[LayerReach, ...], runs: tuple[PageRun, ...], page_tokens: int
) -> None:
    if reach:
        rows = [(each.layers_text, str(each.num_pages * page_tokens)) for each in reach]
        print_rows(("layers", "leading tokens in Redis"), rows)
    if runs:
        print_rows(("pages", "layers in Redis", "usable", "hits"), map(_row, runs))


def _row(run: PageRun) -> tuple[str, ...]:
    usable = "yes" if run.visible else "no"
    last = run.last - 1
    pages = f"{run.first}-{last}" if last > run.first else f"{run.first}"
    return (pages, run.layers_text or "none", usable, str(run.num_hits))
