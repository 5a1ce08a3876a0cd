"""chunkmesh.cli.partition: which layers each stage gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.cli.partition import (
    inclusive,
    parse_ranges,
    parse_replicas,
    read_num_layers,
    stage_ranges,
    worker_ranges,
)
from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange


def test_named_ranges_are_inclusive_and_kept_in_order() -> None:
    """--layers 0-9,10-29 is the notation of every other flag of the system."""
    expected = (LayerRange(first=0, last=10), LayerRange(first=10, last=30))
    named = parse_ranges("0-9,10:30")
    assert expected == named
    assert expected == stage_ranges(30, num_stages=7, named=named)


def test_an_even_split_gives_the_remainder_to_later_stages() -> None:
    """The first stage also embeds tokens, the default must not load it more."""
    sizes = [part.num_layers for part in stage_ranges(61, num_stages=4, named=None)]
    assert sizes == [15, 15, 15, 16]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("10-29,0-9", "0-9 must come after 10-29"),
        ("0-9,9-29", "9-29 must come after 0-9"),
        ("0-9,", "'' is no layer range"),
        ("a-b", "'a-b' is no layer range"),
    ],
)
def test_malformed_ranges_are_named(text: str, complaint: str) -> None:
    """A user must see which part of a long list is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse_ranges(text)
    assert complaint in str(caught.value)


def test_ranges_that_leave_a_gap_are_refused_before_anything_starts() -> None:
    """A mesh with a missing layer would wait for ever."""
    with pytest.raises(ConfigError) as caught:
        stage_ranges(30, num_stages=2, named=parse_ranges("0-9,11-29"))
    assert "30 layers: layers 10 missing" in str(caught.value)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    """The commonest first mistake is a wrong --model-path."""
    with pytest.raises(ConfigError) as caught:
        read_num_layers(tmp_path)
    assert f"--model-path {tmp_path}: no config.json there" in str(caught.value)


@pytest.mark.parametrize("config", ["[]", '{"num_hidden_layers": "30"}', "{}"])
def test_a_config_without_layers_is_refused(tmp_path: Path, config: str) -> None:
    """A config of another kind of file must not end in a traceback."""
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError):
        read_num_layers(tmp_path)


def test_one_layer_is_written_as_a_range() -> None:
    """A worker's --layers takes 5-5, not 5."""
    assert inclusive(LayerRange(first=5, last=6)) == "5-5"


def test_an_architecture_that_is_not_served_is_named_first(tmp_path: Path) -> None:
    """A GPT-2 has n_layer instead of num_hidden_layers, which is not what stands in the way."""
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "n_layer": 12}')
    with pytest.raises(ConfigError, match="GPT2LMHeadModel is not served"):
        read_num_layers(tmp_path)


@pytest.mark.parametrize(
    ("replicas", "further"), [("1", ""), ("2", "0-1 2-3"), ("1,3", "2-3 2-3"), ("2,1", "0-1")]
)
def test_replicas_come_behind_one_worker_for_each_stage(replicas: str, further: str) -> None:
    """The first ones are the mesh as it would be without replicas."""
    stages = parse_ranges("0-1,2-3")
    ranges = worker_ranges(stages, parse_replicas(replicas))
    assert ranges[:2] == stages
    assert " ".join(map(inclusive, ranges[2:])) == further


def test_replicas_that_fit_no_mesh_are_refused() -> None:
    """By what was given, before anything starts."""
    with pytest.raises(ConfigError, match="--replicas 1,x: 'x' is no number"):
        parse_replicas("1,x")
    with pytest.raises(ConfigError, match="names 3 stages, the mesh has 2"):
        worker_ranges(parse_ranges("0-1,2-3"), (1, 2, 1))
