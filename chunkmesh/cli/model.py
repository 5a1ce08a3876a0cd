"""The commands `chunkmesh model demo` and `chunkmesh model path`."""

from __future__ import annotations

from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command, Group
from chunkmesh.cli.demo_folder import model_folder
from chunkmesh.cli.exits import reported

app = typer.Typer(cls=Group, no_args_is_help=True, help="Prepare models.")


@app.command(cls=Command)
def demo() -> None:
    """Make the demo model (SmolLM2-135M-Instruct) if need be, and print its folder."""
    with reported():
        print(model_folder("demo"))


@app.command(cls=Command)
def path(
    model: Annotated[str, typer.Argument(help="demo, or a folder.")] = "demo",
) -> None:
    """Print the folder that --model-path MODEL means, made first if it is the demo's."""
    with reported():
        print(model_folder(model))
