"""Builds Generate requests from what a user types. Pure but for reading what is named."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

from chunkmesh.errors import ConfigError, reason_of
from chunkmesh.json_text import parse_json
from chunkmesh.v1 import generation_pb2 as pb

STANDARD_INPUT = Path("-")
"""How users name standard input."""
_ID_LIMIT = 1 << 32


def read_prompt(path: Path) -> str:
    """Read a prompt file as UTF-8; - means standard input.

    Raises:
        ConfigError: it cannot be read; names it.
    """
    try:
        return sys.stdin.read() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {reason_of(error)}") from error


def read_input_ids(path: Path) -> bytes:
    """Read a JSON list of token ids and return them as little-endian unsigned 32-bit.

    - means standard input.

    Raises:
        ConfigError: it cannot be read, or an entry is no id; names it.
    """
    try:
        ids = parse_json(read_prompt(path))
    except ValueError as error:
        raise ConfigError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(ids, list):
        raise ConfigError(f"{path}: expected a JSON list of token ids")
    for index, token_id in enumerate(ids):
        if type(token_id) is not int or not 0 <= token_id < _ID_LIMIT:
            text = json.dumps(token_id)[:40]
            raise ConfigError(f"{path}: entry {index} is {text}, not an id in [0, 2^32)")
    return struct.pack(f"<{len(ids)}I", *ids)


def chat_of(*messages: tuple[str, str]) -> pb.Chat:
    """Return a chat of (role, content) pairs."""
    return pb.Chat(
        messages=[pb.ChatMessage(role=role, content=content) for role, content in messages]
    )
