"""Hostile JSON: a valid document in which some values are others, of other types, or gone."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from typing import Any

from tests.fuzz.mutation import Draw

_GONE = "\0gone"
_DEEP = 100_000
"""Far deeper than any parser's recursion goes."""
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 64, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64),
    *(-(2**63), 10**30, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e-30, 1e30, 1e308, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "a", "\0", "\ud800", "\x1b[2J\n", "../x", "/etc/passwd", "x" * 10_000, "none", "1"),
    *([], {}, [[]], [0], [None], [{}], {"": 0}, {"type": "x"}, {"rope_type": "linear"}),
)
_MAX_STEPS = 3
_BROKEN_SHARE = 0.05
_Path = tuple[str | int, ...]


def mutated_json(*documents: Any, values: tuple[Any, ...] = ()) -> Draw:
    """Return what makes documents as bytes, each with up to three values replaced or removed.

    values are further replacements, which the format gives a meaning.
    """
    replacements = (*_VALUES, *values, *values, _GONE)
    with_paths = [(each, _paths(each)) for each in documents]

    def draw(random_: random.Random) -> bytes:
        document, paths = random_.choice(with_paths)
        if random_.random() < _BROKEN_SHARE:
            return _broken(json.dumps(document).encode(), random_)
        document = copy.deepcopy(document)
        for _ in range(random_.randint(1, _MAX_STEPS)):
            value = copy.deepcopy(random_.choice(replacements))
            document = _replaced(document, random_.choice(paths), value)
        return json.dumps(document).encode()

    return draw


def _paths(value: Any, path: _Path = ()) -> list[_Path]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [path, *(each for key, item in items for each in _paths(item, (*path, key)))]


def _replaced(document: Any, path: _Path, value: Any) -> Any:
    """Return a document with another value, or without one; as it is where a path leads nowhere."""
    if not path:
        return None if value == _GONE else value
    with contextlib.suppress(KeyError, IndexError, TypeError):
        at = document
        for key in path[:-1]:
            at = at[key]
        if value == _GONE:
            del at[path[-1]]
        else:
            at[path[-1]] = value
    return document


def _broken(text: bytes, random_: random.Random) -> bytes:
    """Break the text itself: cut, nested without end, or no UTF-8."""
    at = random_.randint(0, len(text))
    middle = random_.choice((b"", b"[" * _DEEP, b'{"a":' * _DEEP, b"\xff\xfe\0", b"1" * 5000))
    return text[:at] + middle + (text[at:] if middle else b"")
