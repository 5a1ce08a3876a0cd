"""The entry point of `chunkmesh`: joins the commands into one program."""

from __future__ import annotations

import sys
from typing import Annotated

import structlog
import typer

from chunkmesh import __version__
from chunkmesh.cli import chat, demo, generate, model, status, trace, up

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
