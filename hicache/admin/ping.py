"""The command `hicache-admin ping`: whether the server and its Redis answer."""

from __future__ import annotations

import time

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import ANSWER_S, ask
from hicache.admin.exits import EXIT_ERROR
from hicache.admin.output import print_values

app = typer.Typer()


@app.command(cls=Command)
def ping(context: typer.Context, as_json: flags.Json = False) -> None:
    """Ask whether the server and its Redis answer; status 1 if one does not."""
    started_s = time.perf_counter()
    reply = ask(context, lambda hicache: hicache.GetStats(pb.GetStatsRequest(), timeout=ANSWER_S))
    values = {
        "round_trip_ms": round((time.perf_counter() - started_s) * 1000, 1),
        "redis": "down" if reply.redis_fault else "up",
        "redis_fault": reply.redis_fault,
        "redis_version": reply.redis_version,
        "rebuilding": reply.rebuilding,
    }
    print_values(values, as_json=as_json)
    if reply.redis_fault:
        raise typer.Exit(EXIT_ERROR)
