"""A tokenizer.json that would make gigabytes of a line, or give up on one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from chunkmesh.errors import ConfigError, InvalidRequest
from scheduler.model_files import read_model_files
from scheduler.tokenizer import Tokenizer
from tests.bytes_tokenizer import write_bytes_folder

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}
WORDS = {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "nowhere"}


def _load(folder: Path, **changes: Any) -> Tokenizer:
    """Write a folder whose tokenizer.json has other parts, and load it."""
    write_bytes_folder(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return Tokenizer(read_model_files(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 2}}, "up to 81 times"),
        ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 90}}, "at most 16"),
        ({"decoder": {"type": "Sequence", "decoders": [REPLACE] * 2}}, "its decoder"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 9999}}, "9999 characters"),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 17,
                    "pair": [],
                    "special_tokens": {},
                }
            },
            "its post_processor makes up to 17 times",
        ),
        ({"model": WORDS}, "cannot encode"),
    ],
)
def test_a_tokenizer_without_bounds_stops_the_start(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Before the first request could bring the scheduler down."""
    with pytest.raises(ConfigError, match=words) as refusal:
        _load(tmp_path, **changes)
    assert "tokenizer.json" in str(refusal.value)


@pytest.mark.parametrize("table", ["", base64.b64encode(bytes(4) + b"x" * 65).decode(), "="])
def test_a_table_of_long_replacements_stops_the_start(tmp_path: Path, table: str) -> None:
    """One character could stand for a megabyte."""
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        _load(tmp_path, normalizer=normalizer)


def test_a_prompt_that_makes_the_tokenizer_panic(tmp_path: Path) -> None:
    """A pattern that backtracks for too long is a refusal, not a crash of the service's thread."""
    pattern = {"Regex": "^(a+)+$"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    tokenizer = _load(tmp_path, pre_tokenizer=split)
    with pytest.raises(InvalidRequest, match="cannot encode text"):
        tokenizer.encode("a" * 40 + "b")
    assert [97] == tokenizer.encode("a").tolist()[1:]
