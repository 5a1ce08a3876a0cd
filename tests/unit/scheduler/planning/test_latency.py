"""Latencies of models: the built-in one, scaled ones, files and tables."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange, partition
from scheduler.latency_file import LatencyFile, SavedStage
from scheduler.latency_fit import fit_latency
from scheduler.latency_model import StageLatency
from scheduler.planning.latency_source import BUILT_IN, PRODUCTS, built_in_layer, find_subject
from scheduler.planning.model_latency import ModelLatency
from tests.layer_table import layer_points

_FIRST = StageLatency(floor_ms=2.0, fixed_ms=1.0, ms_per_token=0.4, ms_per_pair=1e-6, edge_ms=3.0)
_LAST = StageLatency(ms_per_token=0.1, ms_per_pair=2e-6, edge_ms=5.0)
_RANGES = (LayerRange(first=0, last=4), LayerRange(first=4, last=5))


def _file(model: str = "mine") -> LatencyFile:
    """Return a file of two unequal stages."""
    stages = zip(_RANGES, (_FIRST, _LAST), strict=True)
    return LatencyFile(
        model=model, device="cpu", stages=tuple(SavedStage.of(r, stage) for r, stage in stages)
    )


def test_the_built_in_terms_are_the_fit_of_the_measured_layer() -> None:
    """Shipped figures must be what the measurement gives today."""
    assert fit_latency(layer_points()).latency == built_in_layer().latency


def test_the_measured_model_is_not_scaled() -> None:
    """For its own shape the measured times stand as they are."""
    subject = find_subject(None, BUILT_IN)
    assert subject.name == "qwen3-8b"
    assert not subject.latency.is_estimate
    assert (built_in_layer().latency,) * 36 == subject.latency.layers


def test_scaling_follows_weights_and_heads() -> None:
    """Twice the heads' products make attention twice as long; tokens follow active weights."""
    measured = built_in_layer()
    subject = find_subject("qwen3-32b", BUILT_IN)
    assert subject.shape is not None
    assert subject.latency.is_estimate
    ratio = subject.shape.layers[0].active_parameters / measured.shape.active_parameters
    layer = subject.latency.layers[0]
    assert pytest.approx(measured.latency.ms_per_pair * 2) == layer.ms_per_pair
    assert pytest.approx(measured.latency.ms_per_token * ratio) == layer.ms_per_token


def test_reading_many_experts_takes_a_while() -> None:
    """A small chunk still reads nearly all weights: 2.5 billion of 2 bytes at 4 TB/s."""
    layer = find_subject("qwen3-235b-a22b", BUILT_IN).latency.layers[0]
    assert pytest.approx(1.24, rel=0.02) == layer.floor_ms


def test_a_latent_is_unpacked_for_each_chunk() -> None:
    """Only models with a latent cache pay for the tokens before a chunk."""
    assert find_subject("qwen3-8b", BUILT_IN).latency.layers[0].ms_per_prefix_token == 0
    layer = find_subject("deepseek-v3.1", BUILT_IN).latency.layers[3]
    assert 0 < layer.ms_per_prefix_token < 0.1 * layer.ms_per_token


def test_a_file_is_used_as_it_was_measured() -> None:
    """Cut where it was measured, each stage takes what the file says."""
    stages = ModelLatency.of_file(_file()).pipeline(_RANGES).stages
    for name in (field.name for field in dataclasses.fields(StageLatency)):
        for wanted, stage in zip((_FIRST, _LAST), stages, strict=True):
            assert pytest.approx(getattr(wanted, name)) == getattr(stage, name), name


def test_a_file_can_be_cut_anew() -> None:
    """Layers keep their times, and what the last stage has beside them stays with the last."""
    latency = ModelLatency.of_file(_file())
    stages = latency.pipeline(partition(5, 5)).stages
    assert [3.0, 3.0, 3.0, 3.0, 5.0] == [stage.edge_ms for stage in stages]
    assert [0.1] * 5 == [pytest.approx(stage.ms_per_token) for stage in stages]
    assert latency.whole().edge_ms == 5.0
    assert latency.with_overhead(0.5).whole().edge_ms == 5.5


def test_the_head_is_apart() -> None:
    """It runs once a prompt, so no chunk pays for it; 151936 x 4096 weights at 4 TB/s."""
    edges = find_subject(None, BUILT_IN).latency.edges
    assert (edges.every_ms, edges.first_ms, edges.last_ms) == (0.0, 0.0, 0.0)
    assert pytest.approx(0.311, rel=0.01) == edges.head_ms


def test_products_alone_tell_shares() -> None:
    """Small layers would all take what launching takes, whatever is in them."""
    latency = find_subject("deepseek-v3.1", PRODUCTS).latency
    dense, experts = latency.layers[0], latency.layers[-1]
    assert (dense.floor_ms, dense.fixed_ms, latency.is_estimate) == (0.0, 0.0, True)
    assert 0.9 < experts.ms_per_token / dense.ms_per_token < 1.1
    assert dense.ms_per_pair == experts.ms_per_pair
    small = find_subject("smollm2-135m", PRODUCTS).latency
    parameters = 2 * 576 * 64 * (9 + 3) + 3 * 576 * 1536
    share = 49_152 * 576 / parameters
    assert pytest.approx(share) == small.edges.head_ms / small.layers[0].ms_per_token


def test_a_file_alone_has_no_shape(tmp_path: Path) -> None:
    """Times can be planned with where the model's sizes are not known."""
    path = tmp_path / "fit.json"
    path.write_text(_file().to_json())
    subject = find_subject(None, str(path))
    assert (subject.name, subject.shape, subject.latency.num_layers) == ("mine", None, 5)


def test_a_file_of_other_layers_is_refused(tmp_path: Path) -> None:
    """The times of five layers say nothing of a model of 36."""
    path = tmp_path / "fit.json"
    path.write_text(_file().to_json())
    with pytest.raises(ConfigError, match="5 layers, but --model qwen3-8b has 36"):
        find_subject("qwen3-8b", str(path))


def test_a_table_is_fitted(tmp_path: Path) -> None:
    """A measured layer is enough to plan with."""
    path = tmp_path / "table.json"
    path.write_text(
        json.dumps([[p.work.new_tokens, p.work.prefix_tokens, p.ms] for p in layer_points()])
    )
    subject = find_subject("qwen3-14b", str(path))
    assert (fit_latency(layer_points()).latency,) * 40 == subject.latency.layers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[1, 2]]", "rows of"),
        ("[[512, 0, 1.0]]", "1 different points were measured"),
        ("[[-64, 0, 1.0]]", r"\[0\]\[0\] is -64"),
        ("[[64, -1, 1.0]]", r"\[0\]\[1\] is -1"),
        ("[[64, 0, 1e-320]]", r"\[0\]\[2\] is 1e-320"),
        (f"[[{10**400}, 0, 1.0]]", r"\[0\]\[0\] is 1000"),
        ('[["64", 0, 1.0]]', "valid integer"),
        ("[" * 5000, "recursion limit"),
        (" " * 5_000_000, "more than 4194304 characters"),
        ("{}", "model"),
    ],
)
def test_unsound_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """What cannot carry a plan is refused with the reason."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        find_subject(None, str(path))


def test_an_unknown_latency_is_refused(tmp_path: Path) -> None:
    """Neither a file nor the built-in name."""
    with pytest.raises(ConfigError, match=f"neither {BUILT_IN} nor {PRODUCTS} nor a file"):
        find_subject(None, str(tmp_path / "none.json"))
