"""chunkmesh.bench.prompt_file: JSON lines as several benchmarks write them."""

from __future__ import annotations

import struct

import pytest

from chunkmesh.bench.prompt_file import parse_prompts
from chunkmesh.bench.prompts import BenchPrompt
from chunkmesh.errors import ConfigError


def _parse(text: str) -> tuple[BenchPrompt, ...]:
    return parse_prompts(text, output_tokens=9, name="f.jsonl")


@pytest.mark.parametrize("field", ["prompt", "text"])
def test_a_text_stays_a_text(field: str) -> None:
    """The server tokenizes it, as it would a user's."""
    assert (BenchPrompt(content="Hi", output_tokens=9),) == _parse(f'{{"{field}": "Hi"}}\n')


@pytest.mark.parametrize("field", ["prompt", "input_ids", "prompt_token_ids"])
def test_ids_are_packed(field: str) -> None:
    """They are sent untouched."""
    assert struct.pack("<2I", 5, 70000) == _parse(f'{{"{field}": [5, 70000]}}')[0].content


@pytest.mark.parametrize("field", ["output_len", "output_tokens", "max_tokens"])
def test_a_line_may_say_its_output_length(field: str) -> None:
    """Others take the flag's; empty lines are none."""
    text = f'{{"prompt": "a", "{field}": 3}}\n\n{{"prompt": "b", "{field}": null}}\n'
    assert [3, 9] == [prompt.output_tokens for prompt in _parse(text)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no prompts"),
        ("{", "line 1: no JSON"),
        ('{"prompt": "a"}\n[1]', "line 2: expected an object with one of prompt"),
        ('{"question": "a"}', "line 1: expected an object"),
        ('{"prompt": ""}', "line 1: prompt must be a text or a list"),
        ('{"prompt": 5}', "line 1: prompt must be a text or a list"),
        ('{"prompt": [1, -1]}', "entry 1 is -1"),
        ('{"prompt": [true]}', "entry 0 is true"),
        ('{"prompt": "a", "output_len": 0}', "output length 0"),
        ('{"prompt": "a", "output_len": "3"}', 'output length "3"'),
    ],
)
def test_a_wrong_line_is_named(text: str, complaint: str) -> None:
    """A file of a hundred thousand lines is mended by the number of one."""
    with pytest.raises(ConfigError, match=r"^f\.jsonl") as caught:
        _parse(text)
    assert complaint in str(caught.value)
