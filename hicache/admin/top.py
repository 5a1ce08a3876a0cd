"""The command `hicache-admin top`: the runs of pages that are used, new or large."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags, namespaces, runs
from hicache.admin.output import print_json, print_rows, short

app = typer.Typer()


class Order(enum.StrEnum):
    """By what runs are ranked."""

    HITS = "hits"
    RECENT = "recent"
    BYTES = "bytes"


_ORDERS = {
    Order.HITS: pb.RUN_ORDER_HITS,
    Order.RECENT: pb.RUN_ORDER_RECENT,
    Order.BYTES: pb.RUN_ORDER_BYTES,
}


@app.command(cls=Command)
def top(
    context: typer.Context,
    *,
    by: Annotated[Order, typer.Option(help="Rank by hits, by last use or by bytes.")] = Order.HITS,
    namespace: flags.Namespace = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Most runs to show.")
    ] = 20,
    as_json: flags.Json = False,
) -> None:
    """Rank runs of pages by hits, by last use or by bytes."""
    reply = runs.listed(
        context,
        pb.ListRunsRequest(
            namespace=namespaces.named(context, "--namespace", namespace)
            if namespace is not None
            else b"",
            limit=limit,
            order=_ORDERS[by],
        ),
    )
    if as_json:
        print_json(runs.values(reply))
        return
    print_rows(("namespace", "pages", "first page", *runs.HEAD), map(_row, reply.runs))
    runs.print_left_off(reply)


def _row(run: pb.Run) -> tuple[str, ...]:
    return (
        short(run.namespace),
        runs.pages_text(run),
        short(run.first_digest),
        *runs.columns(run),
    )
