"""What all commands have in common: their help shows no type for flags that take no value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """One command."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer has no public name for it
        """Return arguments and flags, --help included."""
        return [_shown(parameter) for parameter in super().get_params(ctx)]


class Group(TyperGroup):
    """The program, or a command with commands below."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - as above
        """Return the flags, --help included."""
        return [_shown(parameter) for parameter in super().get_params(ctx)]


def _shown(parameter: Any) -> Any:  # noqa: ANN401 - as above
    if getattr(parameter, "is_flag", False) and parameter.metavar is None:
        parameter.metavar = ""
    return parameter
