"""The entry point of `chunkmesh`: joins the commands into one program.

Commands that need a service's code are that service's: it names them as package entry points.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import structlog
import typer

from chunkmesh import __version__
from chunkmesh.cli import chat, demo, generate, model, status, trace, up

SERVICE_COMMANDS = "chunkmesh.commands"
"""Group of the entry points; each is a typer app with one command."""

app = typer.Typer(
    name="chunkmesh",
    help="Serve a large language model with chunked pipeline parallelism.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (up, status, generate, chat, demo, trace):
    app.add_typer(module.app)
app.add_typer(model.app, name="model")


def add_service_commands(to: typer.Typer, found: Iterable[EntryPoint]) -> None:
    """Add the commands that installed services supply, in the order of their names."""
    for each in sorted(found, key=lambda entry: entry.name):
        to.add_typer(each.load())


add_service_commands(app, entry_points(group=SERVICE_COMMANDS))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Serve a large language model with chunked pipeline parallelism."""


def main() -> None:
    """Run the command line. Logs of what is used go to standard error, not among results."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    app(prog_name="chunkmesh")


if __name__ == "__main__":
    main()
