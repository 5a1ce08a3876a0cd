"""chunkmesh.cli.demo_folder: what --model-path may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.cli.demo_folder import model_folder
from chunkmesh.errors import ConfigError
from tests.cli_run import run_cli


def test_a_folder_is_taken(tmp_path: Path) -> None:
    """Absolute, for the services run elsewhere."""
    assert model_folder(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize("text", ["Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M"])
def test_names_on_a_hub_are_told_apart(text: str) -> None:
    """Other servers download such a name; here it would look like a missing config.json."""
    with pytest.raises(ConfigError, match="not downloaded by their names"):
        model_folder(text)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    """`chunkmesh model path` must not print it for scripts."""
    file = tmp_path / "file"
    file.touch()
    for text, said in ((str(tmp_path / "no"), "there is no folder"), (str(file), "is a file")):
        result = run_cli("model", "path", text)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert "hub" not in result.stderr
