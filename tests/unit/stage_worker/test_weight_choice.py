"""Weights that are quantised when they are loaded: what they stand for, and who may share pages."""

from __future__ import annotations

import pathlib

import pytest

from stage_worker.model_stage import load_stage
from stage_worker.weight_choice import STORED, WeightChoice
from tests.exactness import Expected
from tests.fp8_folders import quantise
from tests.pipeline_of_stages import PipelineOfStages
from tests.tiny_models import FAMILIES, make_tiny

FP8 = WeightChoice(quantization="fp8")


def _pipeline(path: pathlib.Path, choice: WeightChoice, *ranges: range) -> PipelineOfStages:
    stages = [load_stage(path, layers=layers, choice=choice) for layers in ranges]
    return PipelineOfStages(stages, num_pages=32, page_tokens=16)


@pytest.mark.parametrize("family", FAMILIES)
def test_they_compute_what_they_stand_for(
    tmp_path: pathlib.Path, prompt: list[int], family: str
) -> None:
    """Where no product of eight bits is computed, a stage gives what dequantised weights give."""
    source, fp8, plain = (tmp_path / name for name in ("source", "fp8", "plain"))
    make_tiny(source, family, intermediate_size=160)
    quantise(source, fp8, plain, 128)
    expected = Expected(plain, prompt, 12)
    expected.check(_pipeline(source, FP8, range(4)))
    expected.check(_pipeline(source, FP8, range(1), range(1, 4)), chunk_tokens=23)


def test_they_share_no_pages_with_full_width(tmp_path: pathlib.Path) -> None:
    """Other weights give other keys and values; all stages of one choice agree."""
    make_tiny(tmp_path, "Llama")
    stored, whole, part = (
        load_stage(tmp_path, layers=layers, choice=choice).description
        for choice, layers in ((STORED, range(4)), (FP8, range(4)), (FP8, range(2, 4)))
    )
    assert stored.config_digest != whole.config_digest
    assert whole.config_digest == part.config_digest
    assert stored.layer_digests == whole.layer_digests


def test_eight_bits_stay_as_they_are(tmp_path: pathlib.Path) -> None:
    """What a checkpoint has quantised already is one model, whether a worker asks for it or not."""
    source, fp8, plain = (tmp_path / name for name in ("source", "fp8", "plain"))
    make_tiny(source, "Llama")
    quantise(source, fp8, plain, 48)
    asked, stored = (
        load_stage(fp8, layers=range(4), choice=choice).description for choice in (FP8, STORED)
    )
    assert asked == stored
    assert "FP8 in blocks of 48 x 48, as stored" in {each.name for each in asked.backends}


def test_the_choice_is_told(tmp_path: pathlib.Path) -> None:
    """Who asks the mesh sees what its weights are."""
    make_tiny(tmp_path, "Llama")
    about = load_stage(tmp_path, layers=range(4), choice=FP8).description
    told = {each.operation: each.name for each in about.backends}
    assert told["weights"] == "FP8 in blocks of 128 x 128, quantised at load"
