"""Loads the settings of a service: defaults < TOML file < environment < flags.

Services share one environment and one file, so a name is wrong only if no service knows it
(chunkmesh.known_settings). chunkmesh.settings_sources reads the sources, pydantic checks the
values. See docs/decisions/0001.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from chunkmesh.errors import ConfigError
from chunkmesh.hidden import without_passwords
from chunkmesh.known_settings import flag_of, variable_of
from chunkmesh.settings import Settings
from chunkmesh.settings_sources import Given, read_environment, read_file, read_flags

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[SettingsT]):
    """Settings, and where each value comes from."""

    settings: SettingsT
    origins: Mapping[str, str]
    """Field -> default, file PATH, environment CHUNKMESH_..., or flag --..., for every field."""

    def values(self) -> dict[str, str]:
        """Return each field's value as text, without passwords in URLs."""
        return {name: _shown(getattr(self.settings, name)) for name in self.origins}

    def open_passwords(self) -> tuple[str, ...]:
        """Return the flags by which passwords were given, where every process list shows them."""
        return tuple(
            flag_of(name)
            for name, origin in self.origins.items()
            if origin.startswith("flag ") and "***" in _shown(getattr(self.settings, name))
        )

    def describe(self) -> str:
        """Return one line a field: its flag, value and origin."""
        values = self.values()
        flags = {name: flag_of(name) for name in values}
        flag_width = max(map(len, flags.values()))
        value_width = max(map(len, values.values()))
        return "".join(
            f"{flags[name]:<{flag_width}}  {value:<{value_width}}  {self.origins[name]}\n"
            for name, value in values.items()
        )


def load(
    settings_class: type[SettingsT], argv: Sequence[str], environ: Mapping[str, str]
) -> Loaded[SettingsT]:
    """Read the settings of one service from all sources.

    --help, --version and --print-config write to stdout and raise SystemExit(0).

    Raises:
        ConfigError: a value or a name is wrong, in one line that says which and why.
    """
    flags = read_flags(settings_class, argv)
    environment = read_environment(settings_class, environ)
    config_file = flags.config_file or environ.get("CHUNKMESH_CONFIG") or None
    from_file = read_file(settings_class, config_file) if config_file else {}
    given = {**from_file, **environment, **flags.given}
    try:
        settings = settings_class.model_validate({name: item.value for name, item in given.items()})
    except ValidationError as error:
        raise ConfigError(_explain(error.errors()[0], given)) from error
    loaded = Loaded(
        settings=settings,
        origins={
            name: given[name].origin if name in given else "default"
            for name in settings_class.model_fields
        },
    )
    if flags.print_config:
        sys.stdout.write(loaded.describe())
        raise SystemExit(0)
    return loaded


def _explain(error: ErrorDetails, given: Mapping[str, Given]) -> str:
    """Say in one line which setting is wrong, its value and the limit."""
    reason = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return reason
    name = str(error["loc"][0])
    if error["type"] == "missing":
        return f"{flag_of(name)} is required (or {variable_of(name)}, or {name} in a config file)"
    reason = reason.removeprefix("Input ")
    origin = f" ({given[name].origin})" if name in given else ""
    return f"{flag_of(name)} {_shown(error['input'])}{origin}: {reason}"


def _shown(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(_shown, value))
    return without_passwords("" if value is None else str(value))
