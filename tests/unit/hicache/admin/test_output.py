"""What tables show of names that others chose."""

from __future__ import annotations

import pytest

from hicache.admin.output import print_rows, print_values, visible


def test_brackets_stay(capsys: pytest.CaptureFixture[str]) -> None:
    """A model served as llama[v2] or [/] is shown so, not taken for a style or an error."""
    print_rows(("model",), [("llama[v2]",), ("[/]",)])
    rows = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert rows[-3:] == ["llama[v2]", "[/]", ""]


def test_values_keep_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason why Redis does not answer may hold brackets, too."""
    print_values({"redis_fault": "[auth] failed [/]"}, as_json=False)
    assert capsys.readouterr().out.split("fault")[1].strip() == "[auth] failed [/]"


def test_a_terminal_obeys_nothing() -> None:
    """A name cannot move the cursor, change colours or turn the direction of writing."""
    assert visible("a\x1b[31mb\n\u202ec \u00fc") == "a\\x1b[31mb\\n\\u202ec \u00fc"
