"""The command `hicache-admin tree`: cached prompts as branches, a run of pages a line."""

from __future__ import annotations

from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags, namespaces, runs
from hicache.admin.exits import EXIT_NOT_FOUND, fail
from hicache.admin.output import print_json, print_rows, short

app = typer.Typer()


@app.command(cls=Command)
def tree(
    context: typer.Context,
    *,
    namespace: flags.Namespace = None,
    prefix: flags.Prefix = None,
    depth: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=1_000_000, help="Deepest branch, 1 for roots; 0 for all."
        ),
    ] = 0,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Most runs to show.")
    ] = 1000,
    as_json: flags.Json = False,
) -> None:
    """Show what is cached as a tree; what follows without a branch is one line."""
    reply = runs.listed(
        context,
        pb.ListRunsRequest(
            namespace=namespaces.named(context, "--namespace", namespace)
            if namespace is not None
            else b"",
            below=namespaces.digest_prefix("--prefix", prefix) if prefix is not None else b"",
            max_depth=depth,
            limit=limit,
            order=pb.RUN_ORDER_TREE,
        ),
    )
    if as_json:
        print_json(runs.values(reply))
    else:
        print_rows(("pages", "namespace", "first page", *runs.HEAD), map(_row, reply.runs))
        runs.print_left_off(reply)
    if not reply.runs and (namespace is not None or prefix is not None):
        fail("nothing of it is cached", EXIT_NOT_FOUND)


def _row(run: pb.Run) -> tuple[str, ...]:
    return (
        "  " * run.depth + runs.pages_text(run),
        short(run.namespace),
        short(run.first_digest),
        *runs.columns(run),
    )
