"""Reads the prompts that warm is to run."""

from __future__ import annotations

from pathlib import Path

from chunkmesh.json_text import parse_json
from chunkmesh.v1 import generation_pb2
from hicache.admin import flags
from hicache.admin.exits import EXIT_USAGE, fail
from hicache.admin.prompts import of_messages, of_text

_INPUTS = frozenset({"text", "input_ids", "messages"})
"""What a line's prompt may be, one of them."""


def read_warm_file(
    path: Path, *, whole: bool, cache_salt: str, chat_role: flags.Role | None = None
) -> list[generation_pb2.TokenizeRequest]:
    """Return the prompts of a file; ends the command if one cannot be read.

    Lines without a salt of their own get cache_salt, and texts chat_role; empty lines do not count.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror}", EXIT_USAGE)
    except UnicodeDecodeError as error:
        fail(f"{path}: {error}", EXIT_USAGE)
    if whole:
        return [of_text(content, chat_role, cache_salt=cache_salt)]
    lines = [(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    if path.suffix != ".jsonl":
        return [of_text(line, chat_role, cache_salt=cache_salt) for _, line in lines]
    return [_parse(line, f"{path}:{number}", cache_salt, chat_role) for number, line in lines]


def _parse(
    line: str, place: str, cache_salt: str, chat_role: flags.Role | None
) -> generation_pb2.TokenizeRequest:
    try:
        value = parse_json(line)
    except ValueError as error:
        fail(f"{place}: {error}", EXIT_USAGE)
    if isinstance(value, str):
        value = {"text": value}
    given = value.keys() - {"cache_salt"} if isinstance(value, dict) else set()
    if len(given) != 1 or not given <= _INPUTS:
        wanted = "a string, or an object with text, input_ids or messages"
        fail(f"{place}: expected {wanted}", EXIT_USAGE)
    salt = value.get("cache_salt", cache_salt)
    try:
        if "text" in value:
            return of_text(value["text"], chat_role, cache_salt=salt)
        if "messages" in value:
            messages = [generation_pb2.ChatMessage(**message) for message in value["messages"]]
            return of_messages(messages, cache_salt=salt)
        ids = generation_pb2.TokenIds(ids=value["input_ids"])
        return generation_pb2.TokenizeRequest(input_ids=ids, cache_salt=salt)
    except (TypeError, ValueError) as error:
        fail(f"{place}: {error}", EXIT_USAGE)
