"""The scenario files: each says why it exists and what the engine answers to each command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.play import play

_FOLDER = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """What the engine decides is written down and read by people: a change must show."""
    text = path.read_text(encoding="ascii")
    assert text.startswith("# ")
    assert text == play(text)
