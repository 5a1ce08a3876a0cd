"""Runs `chunkmesh` inside the test's process, as a command line would."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from chunkmesh.cli.__main__ import app_for


def run_cli(*words: str, typed: str | None = None) -> Result:
    """Run a command line to its end, on a wide screen; typed is its standard input."""
    return CliRunner().invoke(app_for(words), list(words), input=typed, env={"COLUMNS": "200"})
