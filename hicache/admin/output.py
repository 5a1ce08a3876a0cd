"""What commands print: one JSON object with --json, else tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chunkmesh.layers import LayerRange
from chunkmesh.v1 import common_pb2
from hicache.admin.units import duration_text, size_text

SHORT_DIGITS = 12
"""Hex digits of a digest in tables; enough to be given back as a prefix."""
_WIDTH_WITHOUT_TERMINAL = 160


def print_json(values: Mapping[str, object]) -> None:
    """Print one object on one line, at once."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def print_values(values: Mapping[str, object], *, as_json: bool) -> None:
    """Print names and values."""
    if as_json:
        print_json(values)
        return
    table = Table(show_header=False, box=None)
    for name, value in values.items():
        label = name.removeprefix("num_").removesuffix("_ms").replace("_", " ")
        table.add_row(label, _cell(_text(name, value)))
    print_table(table)


def print_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people."""
    table = Table(*head, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(_cell, row))
    print_table(table)


def print_table(table: Table) -> None:
    """Print as wide as the terminal, or wide enough where there is none."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    console.print(table)


def visible(text: str) -> str:
    """Return text whose control characters are written out, so that a terminal obeys none."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def short(digest: bytes) -> str:
    """Return a digest's first digits."""
    return digest.hex()[:SHORT_DIGITS]


def layers_text(layers: Iterable[common_pb2.LayerRange]) -> str:
    """Return ranges as people write them: 0-14."""
    return ", ".join(str(LayerRange(first=each.first, last=each.last)) for each in layers)


def layer_pairs(layers: Iterable[common_pb2.LayerRange]) -> list[list[int]]:
    """Return half-open ranges for JSON."""
    return [[each.first, each.last] for each in layers]


def _cell(text: str) -> Text:
    """Return text as it is: what others named may hold brackets, which rich reads as styles."""
    return Text(visible(text))


def _text(name: str, value: object) -> str:
    if name.endswith("bytes") and isinstance(value, int):
        return size_text(value)
    if name.endswith("_ms"):
        return duration_text(value) if isinstance(value, int) else f"{value} ms"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
