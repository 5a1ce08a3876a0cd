"""Flags that come in groups: each field of a group, a dataclass, is a flag.

A command decorated with takes_options has the fields of each group that it has a parameter of, and
gets them as one value.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter of a command that is a group by flags.

    A field that the command has a parameter for itself keeps its default in the group.
    """
    own = inspect.signature(command, eval_str=True).parameters.values()
    kept = [parameter for parameter in own if not dataclasses.is_dataclass(parameter.annotation)]
    names = {parameter.name for parameter in kept}
    groups = {
        parameter.name: (parameter.annotation, _flags(parameter.annotation, names))
        for parameter in own
        if parameter.name not in names
    }

    @functools.wraps(command)
    def with_flags(**given: Any) -> None:  # noqa: ANN401 - typer hands flags of any type
        values = {
            name: group(**{flag.name: given.pop(flag.name) for flag in flags})
            for name, (group, flags) in groups.items()
        }
        command(**given, **values)

    flags = [flag for _, flags in groups.values() for flag in flags]
    vars(with_flags)["__signature__"] = inspect.Signature([*kept, *flags])
    return with_flags


def _flags(group: type[Any], without: set[str]) -> list[inspect.Parameter]:
    """Return a parameter for each field, as typer reads them."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
        if field.name not in without
    ]
