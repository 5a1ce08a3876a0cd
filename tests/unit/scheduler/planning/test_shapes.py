"""Model shapes: built-in ones against what their makers publish, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from scheduler.planning.known_shapes import KNOWN_CONFIGS, known_shape
from scheduler.planning.latency_source import read_shape
from scheduler.planning.model_shape import ModelShape
from scheduler.planning.shape_config import parse_shape


def _shape(name: str) -> ModelShape:
    shape = known_shape(name)
    assert shape is not None
    return shape


@pytest.mark.parametrize(
    ("name", "layers", "billions"),
    [
        ("smollm2-135m", 30, 0.1345),
        ("llama-3.1-8b", 32, 8.03),
        ("llama-3.1-70b", 80, 70.6),
        ("qwen3-8b", 36, 8.19),
        ("qwen3-14b", 40, 14.8),
        ("qwen3-32b", 64, 32.8),
        ("qwen3-30b-a3b", 48, 30.5),
        ("qwen3-235b-a22b", 94, 235.0),
        ("deepseek-v3.1", 61, 671.0),
    ],
)
def test_parameters_are_the_published_ones(name: str, layers: int, billions: float) -> None:
    """A wrong width would shift every time and byte that is planned."""
    shape = _shape(name)
    assert layers == shape.num_layers
    assert pytest.approx(billions, rel=0.005) == shape.parameters(shape.whole) / 1e9


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-30b-a3b", 3.0), ("qwen3-235b-a22b", 21.6), ("deepseek-v3.1", 37)]
)
def test_few_experts_are_active(name: str, billions: float) -> None:
    """A token is multiplied with its experts only; the embedding is no product."""
    assert pytest.approx(billions, rel=0.02) == _shape(name).active_parameters() / 1e9


def test_cache_widths() -> None:
    """Keys and values of 8 heads of 128, and one latent of 512 with 64 turned elements."""
    assert _shape("qwen3-8b").layers[0].cache_width == 2 * 8 * 128
    assert _shape("deepseek-v3.1").layers[0].cache_width == 576


def test_the_first_layers_of_deepseek_are_dense() -> None:
    """Their stage is lighter, which a partition must know."""
    layers = _shape("deepseek-v3.1").layers
    assert layers[2].parameters < layers[3].parameters / 10


def test_ends_belong_to_their_stages() -> None:
    """The first stage loads the embedding, the last the head; tied weights are in both."""
    shape = _shape("smollm2-135m")
    layer, ends = shape.layers[0].parameters, shape.head_parameters
    assert 15 * layer + ends == shape.parameters(LayerRange(first=0, last=15))
    assert 15 * layer + ends == shape.parameters(LayerRange(first=15, last=30))
    assert 5 * layer == shape.parameters(LayerRange(first=5, last=10))
    assert 30 * layer + ends == shape.parameters(shape.whole)


def test_a_folder_and_its_file_are_the_same(tmp_path: Path) -> None:
    """Users give what they have; unknown fields are ignored."""
    fields = {**KNOWN_CONFIGS["qwen3-8b"], "rope_theta": 1e6}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    by_folder = read_shape(str(tmp_path))
    assert by_folder.layers == read_shape(str(tmp_path / "config.json")).layers
    assert by_folder.layers == _shape("qwen3-8b").layers


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_hidden_layers": "36"}, "num_hidden_layers is '36'"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "8, more than the 4 experts"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, object], words: str) -> None:
    """Value and field, so that the file can be mended."""
    with pytest.raises(ConfigError, match=words):
        parse_shape({**KNOWN_CONFIGS["qwen3-8b"], **change}, name="config.json")


def test_a_missing_field_is_named() -> None:
    """No size is guessed."""
    fields = {k: v for k, v in KNOWN_CONFIGS["qwen3-8b"].items() if k != "vocab_size"}
    with pytest.raises(ConfigError, match="vocab_size"):
        parse_shape(fields, name="config.json")


def test_an_unknown_name_lists_the_known_ones() -> None:
    """A typo is answered with what could be meant."""
    with pytest.raises(ConfigError, match=r"qwen3-9b.*qwen3-8b"):
        read_shape("qwen3-9b")


def test_a_model_is_named_as_it_was_given(tmp_path: Path) -> None:
    """Plans are headed by the name; errors name the flag and the file."""
    (tmp_path / "config.json").write_text(json.dumps(KNOWN_CONFIGS["qwen3-8b"]))
    assert str(tmp_path) == read_shape(str(tmp_path)).name


def test_json_too_deep_to_read_is_refused(tmp_path: Path) -> None:
    """It ended the command with a traceback."""
    path = tmp_path / "config.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="is not JSON"):
        read_shape(str(path))


@pytest.mark.parametrize("name", ["num_experts", "n_shared_experts", "hidden_size"])
def test_sizes_beyond_any_model_are_refused(name: str) -> None:
    """Times and bytes of such a model are beyond a float."""
    fields = {**KNOWN_CONFIGS["qwen3-30b-a3b"], name: 10**400}
    with pytest.raises(ConfigError, match=f"{name} is 1000"):
        parse_shape(fields, name="config.json")


def test_heads_have_a_width() -> None:
    """Fewer elements than heads would be a cache of no bytes."""
    fields = {**KNOWN_CONFIGS["llama-3.1-8b"], "hidden_size": 8, "head_dim": None}
    with pytest.raises(ConfigError, match="hidden_size is 8, less than the 32 heads"):
        parse_shape(fields, name="config.json")
