"""The entry point of `chunkmesh`: joins the commands into one program.

Commands that need a service's code are that service's: it names them as package entry points.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
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


def add_service_commands(
    to: typer.Typer, found: Iterable[EntryPoint], words: Sequence[str]
) -> None:
    """Add the commands of installed services that a command line can mean, ordered by name.

    They import much that others need not wait for: only the one that is named is loaded, or all
    where no command is, for the help.
    """
    named = words[0] if words and not words[0].startswith("-") else None
    for each in sorted(found, key=lambda entry: entry.name):
        if named in {None, each.name}:
            to.add_typer(each.load())


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
    add_service_commands(app, entry_points(group=SERVICE_COMMANDS), sys.argv[1:])
    app(prog_name="chunkmesh")


if __name__ == "__main__":
    main()
