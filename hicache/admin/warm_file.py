"""Reads the prompts that warm is to run."""

from __future__ import annotations

import json
from pathlib import Path

from chunkmesh.v1 import generation_pb2
from hicache.admin.exits import EXIT_USAGE, fail


def read_warm_file(
    path: Path, *, whole: bool, cache_salt: str
) -> list[generation_pb2.TokenizeRequest]:
    """Return the prompts of a file; ends the command if one cannot be read.

    Lines without a salt of their own get cache_salt; empty lines do not count.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror}", EXIT_USAGE)
    except UnicodeDecodeError as error:
        fail(f"{path}: {error}", EXIT_USAGE)
    if whole:
        return [generation_pb2.TokenizeRequest(text=content, cache_salt=cache_salt)]
    lines = [(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    if path.suffix != ".jsonl":
        return [
            generation_pb2.TokenizeRequest(text=line, cache_salt=cache_salt) for _, line in lines
        ]
    return [_parse(line, f"{path}:{number}", cache_salt) for number, line in lines]


def _parse(line: str, place: str, cache_salt: str) -> generation_pb2.TokenizeRequest:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        fail(f"{place}: {error}", EXIT_USAGE)
    if isinstance(value, str):
        value = {"text": value}
    wanted = {"text"} if isinstance(value, dict) and "text" in value else {"input_ids"}
    if not isinstance(value, dict) or not wanted <= value.keys() <= wanted | {"cache_salt"}:
        fail(f"{place}: expected a string, or an object with text or input_ids", EXIT_USAGE)
    salt = value.get("cache_salt", cache_salt)
    try:
        if "text" in value:
            return generation_pb2.TokenizeRequest(text=value["text"], cache_salt=salt)
        ids = generation_pb2.TokenIds(ids=value["input_ids"])
        return generation_pb2.TokenizeRequest(input_ids=ids, cache_salt=salt)
    except (TypeError, ValueError) as error:
        fail(f"{place}: {error}", EXIT_USAGE)
