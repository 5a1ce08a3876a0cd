"""JSON of which nobody knows who wrote it: a value, or one kind of error. Pure.

json.loads alone raises RecursionError for a text that is nested deeply, and takes lone surrogates
for characters, which no UTF-8 and so no message, log or terminal could hold later.
"""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """Return a text's value.

    Raises:
        ValueError: it is no JSON, nested too deeply, or holds half a character.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    has_escapes = b"\\" in text if isinstance(text, bytes) else "\\" in text
    if has_escapes:
        _check_characters(value)
    return value


def _check_characters(value: object) -> None:
    """Refuse lone surrogates, which only an escape can have brought.

    Raises:
        ValueError: there is one.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half a character (a lone surrogate)") from error
