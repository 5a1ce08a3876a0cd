"""Reads what was given for a settings class: flags, environment, TOML file. Checks only names.

Used by chunkmesh.config, which merges the sources and checks the values.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Literal, Never

from pydantic.fields import FieldInfo

from chunkmesh import __version__
from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError, reason_of
from chunkmesh.known_settings import (
    COMMON_NAMES,
    SERVICE_NAMES,
    VARIABLE_PREFIX,
    VARIABLES,
    flag_of,
    variable_of,
)
from chunkmesh.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value for a field, before it is checked."""

    value: object
    origin: str
    """Such as flag --page-size."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GivenFlags:
    """A parsed command line."""

    given: Mapping[str, Given]
    """By field."""
    config_file: str | None
    print_config: bool


def read_flags(settings_class: type[Settings], argv: Sequence[str]) -> GivenFlags:
    """Parse a command line.

    Raises:
        ConfigError: a flag is unknown or lacks its value.
    """
    parser = _parser(settings_class)
    parsed, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ConfigError(_unknown("flag", unknown[0].partition("=")[0], parser.flags()))
    given = {}
    for name, field in settings_class.model_fields.items():
        if (value := getattr(parsed, name)) is not None:
            given[name] = Given(value=_split(field, value), origin=f"flag {flag_of(name)}")
    return GivenFlags(given=given, config_file=parsed.config, print_config=parsed.print_config)


def read_environment(
    settings_class: type[Settings], environ: Mapping[str, str]
) -> dict[str, Given]:
    """Pick this service's variables; an empty one counts as not given.

    Raises:
        ConfigError: a CHUNKMESH_ variable is known to no service.
    """
    mine = {variable_of(name): name for name in settings_class.model_fields}
    theirs = {variable_of(name) for names in SERVICE_NAMES.values() for name in names}
    known = VARIABLES | theirs | {variable_of(name) for name in COMMON_NAMES} | mine.keys()
    given = {}
    for variable, text in environ.items():
        if not variable.startswith(VARIABLE_PREFIX):
            continue
        if variable not in known:
            raise ConfigError(_unknown("variable", variable, known))
        if text and (name := mine.get(variable)):
            value = _split(settings_class.model_fields[name], text)
            given[name] = Given(value=value, origin=f"environment {variable}")
    return given


def read_file(settings_class: type[Settings], path: str) -> dict[str, Given]:
    """Read this service's keys of a TOML file; its own table wins over the top level.

    Raises:
        ConfigError: the file cannot be read, or no service knows a key; names file and key.
    """
    try:
        with Path(path).open("rb") as file:
            top = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path}: {reason_of(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"--config {path}: it is nested too deeply") from error
    fields = settings_class.model_fields
    services = {**SERVICE_NAMES, settings_class.service: frozenset(fields)}
    tables = {key: value for key, value in top.items() if isinstance(value, dict)}
    plain = {key: value for key, value in top.items() if key not in tables}
    merged = _known(plain, frozenset().union(*services.values()), path)
    for key, table in tables.items():
        service = key.replace("-", "_")
        if service not in services:
            raise ConfigError(f"--config {path}: {_unknown('table', key, services)}")
        values = _known(table, services[service], path)
        if service == settings_class.service:
            merged |= values
    return {
        name: Given(value=_split(fields[name], value), origin=f"file {path}")
        for name, value in merged.items()
        if name in fields
    }


def _known(table: Mapping[str, object], names: frozenset[str], path: str) -> dict[str, object]:
    """Return a table by field name.

    Raises:
        ConfigError: a key is none of names, nor common to all services.
    """
    known = names | COMMON_NAMES
    values: dict[str, object] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"--config {path}: {_unknown('key', key, known)}")
        if name in values:
            raise ConfigError(f"--config {path}: {name} is given twice")
        values[name] = value
    return values


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting."""

    def error(self, message: str) -> Never:
        raise ConfigError(message)

    def flags(self) -> tuple[str, ...]:
        """Return every flag."""
        return tuple(self._option_string_actions)


def _parser(settings_class: type[Settings]) -> _Parser:
    parser = _Parser(
        prog=settings_class.command or None,
        description=(settings_class.__doc__ or "").partition("\n\n")[0],
        epilog=(
            "Every flag may also come from the environment "
            f"({VARIABLE_PREFIX}LOG_LEVEL for --log-level, true or false for a switch) or from a "
            "TOML file. Flags win over the environment, and that over the file. What may be given "
            "several times may also be one value with commas."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file with settings (or {VARIABLE_PREFIX}CONFIG)"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print every value and its origin, and exit"
    )
    for name, field in settings_class.model_fields.items():
        _add_flag(parser, name, field, settings_class.flag_aliases.get(name, ()))
    return parser


def _add_flag(
    parser: argparse.ArgumentParser, name: str, field: FieldInfo, aliases: Sequence[str]
) -> None:
    flags = (flag_of(name), *aliases)
    text = _help(field)
    kind = _inner_type(field)
    if kind is bool:
        parser.add_argument(*flags, dest=name, help=text, action=argparse.BooleanOptionalAction)
    elif _is_list(field):
        parser.add_argument(
            *flags, dest=name, help=text, action="append", metavar=_metavar(name, kind)
        )
    elif typing.get_origin(kind) is Literal:
        metavar = "{" + ",".join(typing.get_args(kind)) + "}"
        parser.add_argument(*flags, dest=name, help=text, metavar=metavar)
    else:
        parser.add_argument(*flags, dest=name, help=text, metavar=_metavar(name, kind))


def _metavar(name: str, kind: object) -> str:
    """Return what stands for a value in --help."""
    if typing.get_origin(kind) is typing.Annotated:
        return _metavar(name, typing.get_args(kind)[0])
    if typing.get_origin(kind) is tuple:
        return f"{_metavar(name, typing.get_args(kind)[0])},..."
    last_word = name.rpartition("_")[2].upper()
    if kind is HostPort:
        return "HOST:PORT"
    if kind is Path and last_word not in {"PATH", "DIR"}:
        return "FILE"
    if kind in (int, float) and last_word != "PORT":
        return "N"
    return last_word


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.is_required():
        return f"{text} (required)"
    default = field.get_default(call_default_factory=True)
    if default is None or default in ("", ()):
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"{text} (default: {shown.replace('%', '%%')})"


def _inner_type(field: FieldInfo) -> object:
    """Return the type of a field, without None."""
    args = [arg for arg in typing.get_args(field.annotation) if arg is not type(None)]
    optional = typing.get_origin(field.annotation) in (typing.Union, UnionType)
    return args[0] if optional and len(args) == 1 else field.annotation


def _is_list(field: FieldInfo) -> bool:
    return typing.get_origin(_inner_type(field)) is tuple


def _split(field: FieldInfo, value: object) -> object:
    """Split the texts of a list-valued field at commas; other values pass."""
    if not _is_list(field):
        return value
    parts = value if isinstance(value, list) else [value]
    return [
        piece.strip() if isinstance(piece, str) else piece
        for part in parts
        for piece in (part.split(",") if isinstance(part, str) else [part])
    ]


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{name}: no such {kind}{hint}"
