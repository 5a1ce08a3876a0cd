"""Reads prompts from JSON lines, in the fields that other benchmarks' files have. Pure.

{"prompt": "What is a pipeline?", "output_len": 64}
{"input_ids": [5, 9, 2]}
"""

from __future__ import annotations

import json

import numpy as np

from chunkmesh.bench.prompts import BenchPrompt
from chunkmesh.errors import ConfigError
from chunkmesh.json_text import parse_json

PROMPT_FIELDS = ("prompt", "text", "input_ids", "prompt_token_ids")
"""Each may be a text or a list of token ids; the first that is there counts."""
OUTPUT_FIELDS = ("output_len", "output_tokens", "max_tokens")
_ID_LIMIT = 1 << 32


def parse_prompts(text: str, *, output_tokens: int, name: str) -> tuple[BenchPrompt, ...]:
    """Return the prompts of a file's text, one a line; output_tokens is for lines without.

    Raises:
        ConfigError: a line is none, or there are no lines; names the file and the line.
    """
    prompts = tuple(
        _prompt(line, output_tokens, f"{name}: line {number}")
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    )
    if not prompts:
        raise ConfigError(f"{name}: holds no prompts; give one JSON object a line")
    return prompts


def _prompt(line: str, output_tokens: int, place: str) -> BenchPrompt:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"{place}: no JSON: {error}") from error
    field = next((each for each in PROMPT_FIELDS if isinstance(row, dict) and each in row), None)
    if field is None:
        raise ConfigError(f"{place}: expected an object with one of {', '.join(PROMPT_FIELDS)}")
    asked = next((row[each] for each in OUTPUT_FIELDS if row.get(each) is not None), output_tokens)
    if type(asked) is not int or not 1 <= asked < _ID_LIMIT:
        raise ConfigError(f"{place}: output length {json.dumps(asked)[:40]}, must be at least 1")
    return BenchPrompt(content=_content(row[field], f"{place}: {field}"), output_tokens=asked)


def _content(value: object, place: str) -> bytes | str:
    if not value or not isinstance(value, str | list):
        raise ConfigError(f"{place} must be a text or a list of token ids, not empty")
    if isinstance(value, str):
        return value
    for index, token_id in enumerate(value):
        if type(token_id) is not int or not 0 <= token_id < _ID_LIMIT:
            shown = json.dumps(token_id)[:40]
            raise ConfigError(f"{place}: entry {index} is {shown}, not an id in [0, 2^32)")
    return np.asarray(value, dtype="<u4").tobytes()
