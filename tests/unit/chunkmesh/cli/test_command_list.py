"""chunkmesh.cli.command_list and the program that is made of it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from chunkmesh import __version__
from chunkmesh.cli.__main__ import ENTRY_POINTS, load_command
from chunkmesh.cli.command_list import OWN_COMMANDS, SERVICE_COMMANDS
from tests.cli_run import run_cli

_HEAVY = {"asyncio", "google.protobuf", "grpc", "numpy", "pydantic", "structlog", "torch"}
_PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


def _declared() -> dict[str, EntryPoint]:
    """Return the entry points that the package declares, installed or not."""
    declared = tomllib.loads(_PYPROJECT.read_text())["project"]["entry-points"][ENTRY_POINTS]
    return {name: EntryPoint(name, value, ENTRY_POINTS) for name, value in declared.items()}


def _summary(app: typer.Typer, name: str) -> str:
    """Return what a command says of itself, in one line."""
    command = typer.main.get_command(app)
    assert (command.name or name) == name
    return " ".join((command.help or "").split("\n\n")[0].split())


@pytest.mark.parametrize("name", OWN_COMMANDS)
def test_the_list_says_what_commands_say(name: str) -> None:
    """The list is shown instead of them, so it must not fall behind."""
    app = load_command(name)
    assert app is not None
    assert _summary(app, name) == OWN_COMMANDS[name]


def test_commands_of_services_are_declared_and_listed() -> None:
    """An entry point that is not listed would be missing from the help."""
    declared = _declared()
    assert {name: _summary(entry.load(), name) for name, entry in declared.items()} == dict(
        SERVICE_COMMANDS
    )


def test_the_help_lists_every_command() -> None:
    """The first thing that one tries, with and without --help."""
    for words in ((), ("--help",)):
        result = run_cli(*words)
        shown = result.stdout + result.stderr
        assert all(f" {name} " in shown for name in {**OWN_COMMANDS, **SERVICE_COMMANDS})


def test_a_name_that_is_none_is_refused_with_the_nearest() -> None:
    """A slip must not run anything."""
    result = run_cli("statsu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean 'status'" in result.stderr


@pytest.mark.parametrize("command", ["generate", "status", "up", "plan"])
def test_help_shows_no_type_for_switches(command: str) -> None:
    """`--json <bool>` reads as if it wanted a value."""
    result = run_cli(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "<bool>" not in result.stdout


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_what_runs_no_command_imports_none(word: str) -> None:
    """People type it often, and each of these packages takes a tenth of a second."""
    program = (
        "import sys; from chunkmesh.cli.__main__ import main\n"
        f"sys.argv = ['chunkmesh', {word!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"sys.exit(' '.join({_HEAVY} & sys.modules.keys()) or None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (__version__ if word == "--version" else "generate") in done.stdout
