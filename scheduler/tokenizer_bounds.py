"""Bounds on what a tokenizer.json may make of a text: it comes with a model and is not trusted.

The library that runs it has none: a few replacements one after the other make gigabytes of one
line, and a pattern that backtracks too long ends in a panic, which is no Exception.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator
from typing import Any

from chunkmesh.errors import ConfigError

_MOST_GROWTH = 16
"""Characters that may come of one; the tokenizers of the families served here have at most 2."""
_MOST_ADDED = 1024
"""Characters, or tokens, that may be put before and behind a text."""
_MOST_MAPPED_BYTES = 64
"""That a table may write for one character; the longest ligature of Unicode has 33."""
_PARTS = {"normalizer": "normalizers", "decoder": "decoders", "post_processor": "processors"}
"""Part of the file -> where a sequence of it has its members."""


def check_bounds(content: Any) -> None:  # noqa: ANN401 - JSON
    """Look at a tokenizer.json that the library has accepted.

    Raises:
        ConfigError: it makes far more of a text than that is.
    """
    for part, members in _PARTS.items():
        growth = _growth(content.get(part), members)
        if growth > _MOST_GROWTH:
            raise ConfigError(
                f"its {part} makes up to {growth} times of a text, at most {_MOST_GROWTH} is served"
            )


def _growth(step: Any, members: str) -> int:  # noqa: ANN401 - JSON
    """Return how many characters, or tokens, may come of one."""
    match step:
        case {"type": "Sequence"}:
            growth = 1
            for each in step[members]:
                growth = min(growth * _growth(each, members), 1 << 64)
            return growth
        case {"type": "Replace", "content": str(content)}:
            return 1 + len(content)  # a pattern may match between any two characters
        case {"type": "Prepend", "prepend": str(text)} if len(text) > _MOST_ADDED:
            raise ConfigError(f"its normalizer puts {len(text)} characters before a text")
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            _check_table(table)
        case {"type": "TemplateProcessing", "single": list(pieces)}:
            if len(pieces) > _MOST_ADDED:
                raise ConfigError(f"its post_processor makes a text of {len(pieces)} pieces")
            return sum("Sequence" in piece for piece in pieces)
    return 1


def _check_table(table: str) -> None:
    """Look at a table of replacements: a trie behind its length, then texts with a zero behind."""
    try:
        data = base64.b64decode(table)
    except binascii.Error as error:
        raise ConfigError(f"its precompiled_charsmap is no base64: {error}") from error
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    longest = max(map(len, texts.split(b"\0")), default=0)
    if longest > _MOST_MAPPED_BYTES:
        raise ConfigError(f"its precompiled_charsmap writes {longest} bytes for one character")


@contextlib.contextmanager
def no_panic() -> Iterator[None]:
    """Turn what the library raises inside into one kind of error.

    Raises:
        ValueError: it cannot do what was asked of it.
    """
    try:
        yield
    except BaseException as error:
        # tokenizers 0.22 raises Exception itself, or a class of panics that it shows nowhere.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error
