"""Random weights from a config alone."""

from __future__ import annotations

import pathlib

import pytest
import structlog.testing

from chunkmesh.errors import ConfigError
from stage_worker.model_stage import load_stage
from stage_worker.weight_choice import DUMMY
from tests.pipeline_of_stages import PipelineOfStages
from tests.tiny_models import FAMILIES, make_tiny


@pytest.fixture(params=FAMILIES)
def config_only(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of each family that holds nothing but config.json."""
    make_tiny(tmp_path, request.param)
    for file in tmp_path.iterdir():
        if file.name != "config.json":
            file.unlink()
    return tmp_path


def _pipeline(path: pathlib.Path, *ranges: range) -> PipelineOfStages:
    stages = [load_stage(path, layers=layers, choice=DUMMY) for layers in ranges]
    return PipelineOfStages(stages, num_pages=8, page_tokens=16)


def test_split_equals_whole(config_only: pathlib.Path, prompt: list[int]) -> None:
    """Stages that never saw each other hold parts of one model, which answers something."""
    whole = _pipeline(config_only, range(4))
    split = _pipeline(config_only, range(1), range(1, 4))
    answer = whole.generate(prompt, 12)
    assert answer == split.generate(prompt, 12, chunk_tokens=20)
    assert len(set(answer)) > 1
    [about] = [stage.description for stage in whole.stages]
    assert about.layer_digests == sum((s.description.layer_digests for s in split.stages), ())
    assert len(set(about.layer_digests)) == 4


def test_weights_are_needed_otherwise(tmp_path: pathlib.Path) -> None:
    """Nobody gets random weights by mistake."""
    make_tiny(tmp_path, "Llama")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights"):
        load_stage(tmp_path, layers=range(4))


def test_dummy_weights_are_logged(tmp_path: pathlib.Path) -> None:
    """Answers without sense have a reason in the log."""
    make_tiny(tmp_path, "Llama")
    with structlog.testing.capture_logs() as logs:
        load_stage(tmp_path, layers=range(1), choice=DUMMY)
    warnings = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert warnings == ["dummy weights"]
