"""The command `hicache-admin watch`: what happens to the cache, a line a change."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, cast

import grpc
import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import HiCache, ask
from hicache.admin.exits import parsed
from hicache.admin.output import print_json, short
from hicache.admin.units import parse_duration_ms, size_text

app = typer.Typer()


@app.command(cls=Command)
def watch(
    context: typer.Context,
    *,
    count: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after this many changes; 0 never.")
    ] = 0,
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="End after this: 30s, 5m.")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Show changes as they happen, until Ctrl-C; with --json one object a line."""
    for_ms = None if for_time is None else parsed("--for", for_time, parse_duration_ms)
    for_s = None if for_ms is None else for_ms / 1000
    ask(context, lambda hicache: _show(hicache, count, for_s, as_json=as_json))


def _show(hicache: HiCache, count: int, for_s: float | None, *, as_json: bool) -> None:
    num_shown = 0
    call = hicache.Watch(pb.WatchRequest(), timeout=for_s)
    try:
        for change in call:
            if as_json:
                print_json(_values(change))
            else:
                sys.stdout.write(_line(change) + "\n")
                sys.stdout.flush()
            num_shown += 1
            if num_shown == count:
                return
    except grpc.RpcError as error:
        if for_s is None or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
    finally:
        cast("grpc.Call", call).cancel()


def _values(change: pb.WatchResponse) -> dict[str, object]:
    return {
        "unix_ms": change.unix_ms,
        "kind": _kind(change),
        "namespace": change.namespace.hex(),
        "num_pages": change.num_pages,
        "num_queried_pages": change.num_queried_pages,
        "num_bytes": change.num_bytes,
        "digest": change.digest.hex(),
        "text": change.text,
    }


def _line(change: pb.WatchResponse) -> str:
    when = datetime.fromtimestamp(change.unix_ms / 1000).astimezone()
    words = [when.strftime("%H:%M:%S.%f")[:-3], f"{_kind(change):<12}"]
    if change.kind == pb.CHANGE_KIND_MATCHED:
        words.append(f"{change.num_pages} of {change.num_queried_pages} pages")
    elif change.num_pages:
        words.append(f"{change.num_pages} page{'' if change.num_pages == 1 else 's'}")
    if change.num_bytes:
        words.append(size_text(change.num_bytes))
    if change.namespace:
        words.append(f"namespace {short(change.namespace)}")
    if change.digest:
        words.append(f"page {short(change.digest)}")
    if change.text:
        words.append(change.text)
    return "  ".join(words)


def _kind(change: pb.WatchResponse) -> str:
    return pb.ChangeKind.Name(change.kind).removeprefix("CHANGE_KIND_").lower()
