"""The entry point of `chunkmesh`: joins the commands into one program.

Commands that need a service's code are that service's: it names them as package entry points.
Only the command that is named is imported, for all of them take long.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from chunkmesh import __version__
from chunkmesh.cli.command_list import OWN_COMMANDS, SERVICE_COMMANDS
from chunkmesh.cli.command_shape import Group
from chunkmesh.cli.full_output import written_output

ENTRY_POINTS = "chunkmesh.commands"
"""Group of the services' entry points; each is a typer app with one command."""


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the program as far as a command line can mean it.

    It has the command that is named, or the names of all where none is, for the help.
    """
    app = typer.Typer(
        name="chunkmesh",
        cls=Group,
        help="Serve a large language model with chunked pipeline parallelism.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    named = next((word for word in words if not word.startswith("-")), None)
    command = None if named is None else load_command(named)
    if command is None:
        for name, summary in {**OWN_COMMANDS, **SERVICE_COMMANDS}.items():
            app.command(name, help=summary)(_listed)
    else:
        app.add_typer(command, name=named if len(command.registered_commands) > 1 else None)
    return app


def load_command(name: str) -> typer.Typer | None:
    """Import one command; None if there is none of that name."""
    if name in OWN_COMMANDS:
        app = importlib.import_module(f"chunkmesh.cli.{name}").app
        assert isinstance(app, typer.Typer)
        return app
    # Looking through what is installed takes a tenth of a second.
    from importlib.metadata import entry_points  # noqa: PLC0415

    found = entry_points(group=ENTRY_POINTS, name=name)
    return next((entry.load() for entry in found), None)


def _listed() -> None:
    """Stand in the help for a command."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


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
    """Run the command line."""
    app = app_for(sys.argv[1:])
    if (structlog := sys.modules.get("structlog")) is not None:
        # Logs of what the command uses go to standard error, not among results.
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with written_output():
        app(prog_name="chunkmesh")


if __name__ == "__main__":
    main()
