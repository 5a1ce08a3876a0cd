"""The command `hicache-admin export`: pages from Redis into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.page_record import num_kv_bytes
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import DAY_S, HiCache, ask
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE, fail
from hicache.admin.output import print_values
from hicache.admin.page_file import PageFileWriter
from hicache.admin.prompts import GivenPrompt
from hicache.admin.selection import Given, select
from hicache.admin.units import size_text

app = typer.Typer()


@app.command("export", cls=Command)
@takes_options
def export_pages(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="File to write; it must not be there yet.")],
    *,
    given: Given,
    prompt: GivenPrompt,
    as_json: flags.Json = False,
) -> None:
    """Write pages to a file, all if none are chosen; only sound ones, parents before children."""
    if file.exists():
        fail(f"{file} is there already", EXIT_USAGE)
    request = pb.ExportRequest(selection=select(context, given, prompt, or_all=True))
    try:
        num_pages, num_bytes = ask(context, lambda hicache: _write(hicache, request, file))
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", EXIT_ERROR)
    values = {"file": str(file), "num_pages": num_pages, "num_bytes": num_bytes}
    print_values(values, as_json=as_json)
    if not num_pages:
        raise typer.Exit(EXIT_NOT_FOUND)


def _write(hicache: HiCache, request: pb.ExportRequest, file: Path) -> tuple[int, int]:
    """Return how many pages came and their KV bytes; without pages there is no file."""
    num_pages = num_bytes = 0
    digest = b""
    console = Console(stderr=True)
    with (
        PageFileWriter(file) as writer,
        Progress(
            "{task.description}", console=console, transient=True, disable=not console.is_terminal
        ) as progress,
    ):
        task = progress.add_task("exporting", total=None)
        for part in hicache.Export(request, timeout=DAY_S):
            writer.add(part)
            num_pages += part.digest != digest
            digest = part.digest
            num_bytes += num_kv_bytes((field.name, field.value) for field in part.fields)
            said = f"{num_pages} pages, {size_text(writer.num_bytes)} written"
            progress.update(task, description=said)
        if num_pages:
            writer.end()
    return num_pages, num_bytes
