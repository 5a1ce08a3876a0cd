"""The command `chunkmesh trace`: when which stage worked on the last requests."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.cli.chrome_trace import chrome_trace
from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.exits import reported
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.cli.output import output_console
from chunkmesh.cli.pipeline_trace import PipelineTrace
from chunkmesh.cli.server_options import ServerOptions
from chunkmesh.cli.trace_text import trace_text
from chunkmesh.errors import ChunkMeshError, ConfigError, reason_of

_MAX_WIDTH = 140


class NothingToTrace(ChunkMeshError):
    """The mesh has served no request yet."""


class TraceFormat(enum.StrEnum):
    """What a trace may be written as."""

    CHROME = "chrome"
    PNG = "png"
    SVG = "svg"
    TEXT = "text"


_BY_SUFFIX = {
    ".json": TraceFormat.CHROME,
    ".png": TraceFormat.PNG,
    ".svg": TraceFormat.SVG,
    ".txt": TraceFormat.TEXT,
}

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def trace(
    *,
    to: ServerOptions,
    last: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=32, help="The N requests that came last. Default 1."),
    ] = None,
    request_id: Annotated[
        list[str] | None, typer.Option(help="This request; may be given several times.")
    ] = None,
    trace_format: Annotated[
        TraceFormat | None,
        typer.Option(
            "--format", help="chrome is JSON for Perfetto. Default: what --output ends in, or text."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else standard output.")
    ] = None,
) -> None:
    """Show when which stage worked on the last requests: as text, picture, or Perfetto trace."""
    address = to.address()
    if last is not None and request_id:
        raise typer.BadParameter("give --last or --request-id, not both")
    with reported():
        kind = _format(trace_format, output)
        with GenerationClient(address, to.access()) as client:
            told = client.timelines(request_id or (), last=0 if request_id else last or 1)
        if not told:
            raise NothingToTrace(f"no timeline is kept: {address} has served no request yet")
        try:
            _write(PipelineTrace.of(told), kind, output)
        except OSError as error:
            if output is None:  # standard output was closed, as by head
                raise
            raise ConfigError(f"--output {output}: {reason_of(error)}") from error


def _format(wanted: TraceFormat | None, output: Path | None) -> TraceFormat:
    """Return what to write.

    Raises:
        ConfigError: a picture has nowhere to go, or the suffix says nothing.
    """
    if output is None:
        if wanted in {TraceFormat.PNG, TraceFormat.SVG}:
            raise ConfigError(f"--format {wanted}: name the file with --output")
        return wanted or TraceFormat.TEXT
    if wanted is None:
        wanted = _BY_SUFFIX.get(output.suffix.lower())
    if wanted is None:
        raise ConfigError(
            f"--output {output}: say --format, or end it in one of {', '.join(_BY_SUFFIX)}"
        )
    return wanted


def _write(found: PipelineTrace, kind: TraceFormat, output: Path | None) -> None:
    """Write the trace.

    Raises:
        ConfigError: a picture is wanted and matplotlib is not there.
        OSError: the file cannot be written.
    """
    if output is not None and kind in {TraceFormat.PNG, TraceFormat.SVG}:
        _write_picture(found, kind, output)
    else:
        if kind is TraceFormat.CHROME:
            text = json.dumps(chrome_trace(found))
        else:
            text = trace_text(found, width=min(output_console().width, _MAX_WIDTH) - 1)
        if output is None:
            print(text)
            return
        output.write_text(text + "\n", encoding="utf-8")
    noun = "request" if len(found.requests) == 1 else "requests"
    print(f"{output}: {len(found.requests)} {noun}, {len(found.runs)} microbatches on stages")


def _write_picture(found: PipelineTrace, kind: TraceFormat, output: Path) -> None:
    """Draw the picture.

    Raises:
        ConfigError: matplotlib is not there.
        OSError: the file cannot be written.
    """
    try:
        from chunkmesh.cli import trace_picture  # noqa: PLC0415 - matplotlib comes with an extra
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--format {kind} draws with {error.name}, which comes with pip install"
            " 'chunkmesh[demo]'; chrome and text need nothing more"
        ) from error
    trace_picture.save(found, output, "svg" if kind is TraceFormat.SVG else "png")
