"""Prompts that warm is to run."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from chunkmesh.v1 import generation_pb2 as pb
from hicache.admin.flags import Role
from hicache.admin.warm_file import read_warm_file


def test_a_prompt_a_line(tmp_path: Path) -> None:
    """Empty lines are none."""
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\n  \nsecond\n")
    expected = [pb.TokenizeRequest(text=text, cache_salt="s") for text in ("first", "second")]
    assert expected == read_warm_file(path, whole=False, cache_salt="s")


def test_the_whole_file(tmp_path: Path) -> None:
    """A book is one prompt, line ends included."""
    path = tmp_path / "book.txt"
    path.write_text("first\n\nsecond\n")
    expected = [pb.TokenizeRequest(text="first\n\nsecond\n")]
    assert expected == read_warm_file(path, whole=True, cache_salt="")


def test_json_lines(tmp_path: Path) -> None:
    """Ids and a salt of a prompt's own; the flag's salt for the others."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a\\nb"\n{"text": "c"}\n{"input_ids": [1, 2], "cache_salt": "mine"}\n')
    assert [
        pb.TokenizeRequest(text="a\nb", cache_salt="s"),
        pb.TokenizeRequest(text="c", cache_salt="s"),
        pb.TokenizeRequest(input_ids=pb.TokenIds(ids=[1, 2]), cache_salt="mine"),
    ] == read_warm_file(path, whole=False, cache_salt="s")


def test_texts_as_chats(tmp_path: Path) -> None:
    """Prompts of chats are cached as the template writes them; the assistant answers users only."""
    path = tmp_path / "prompts.jsonl"
    messages = '[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]'
    path.write_text(f'"c"\n{{"messages": {messages}}}\n')
    roles = (("system", "a"), ("user", "b"), ("system", "c"))
    said = [pb.ChatMessage(role=role, content=text) for role, text in roles]
    alone = pb.Chat(messages=said[2:], add_generation_prompt=False)
    both = pb.Chat(messages=said[:2], add_generation_prompt=True)
    assert [
        pb.TokenizeRequest(chat=alone),
        pb.TokenizeRequest(chat=both),
    ] == read_warm_file(path, whole=False, cache_salt="", chat_role=Role.SYSTEM)


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "3",
        "{}",
        '{"text": "a", "input_ids": [1]}',
        '{"text": 3}',
        '{"input_ids": [-1]}',
        '{"input_ids": "abc"}',
        '{"text": "a", "more": 1}',
        '{"messages": "a"}',
        '{"messages": [{"role": "user", "text": "a"}]}',
    ],
)
def test_a_line_that_is_no_prompt(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage, with file and line."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(typer.Exit) as ended:
        read_warm_file(path, whole=False, cache_salt="")
    assert 2 == ended.value.exit_code
    assert "prompts.jsonl:2" in capsys.readouterr().err


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage, not a stack."""
    (tmp_path / "latin").write_bytes(b"\xff")
    for name in ("nowhere", "latin"):
        with pytest.raises(typer.Exit) as ended:
            read_warm_file(tmp_path / name, whole=False, cache_salt="")
        assert 2 == ended.value.exit_code
        assert name in capsys.readouterr().err


def test_a_line_of_endless_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets without end are wrong usage, and the line is named."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("[" * 100_000)
    with pytest.raises(typer.Exit):
        read_warm_file(path, whole=False, cache_salt="")
    assert f"{path}:1" in capsys.readouterr().err
