"""Latencies as a file: written, read back, and refused with a reason."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from scheduler.latency_file import LatencyFile, SavedStage, parse_latency_file
from scheduler.latency_model import StageLatency
from scheduler.size_ratios import SizeRatios

_LATENCY = StageLatency(
    floor_ms=5.0, fixed_ms=1.5, ms_per_token=0.01, ms_per_pair=1.31e-8, ms_per_row=0.1, edge_ms=0.75
)
_FILE = LatencyFile(
    model="SmolLM2-135M",
    device="cpu",
    threads=1,
    stages=(
        SavedStage.of(LayerRange(first=0, last=15), _LATENCY),
        SavedStage.of(LayerRange(first=15, last=30), _LATENCY.with_overhead(2.0)),
    ),
)


def test_round_trip() -> None:
    """No digit is lost on the way through the file."""
    read = parse_latency_file(_FILE.to_json(), name="fit.json")
    assert _FILE == read
    assert _LATENCY == read.stages[0].latency
    assert LayerRange(first=15, last=30) == read.stages[1].layers


def test_round_trip_of_ratios() -> None:
    """By how much sizes are off; where they are not, files are as they were without them."""
    ratios = SizeRatios(tokens=(512, 4096), ratios=(0.953258141427091, 1.01))
    latency = dataclasses.replace(_LATENCY, size_ratios=ratios)
    layers = LayerRange(first=0, last=15)
    file = LatencyFile(model="m", device="cpu", stages=(SavedStage.of(layers, latency),))
    assert latency == parse_latency_file(file.to_json(), name="fit.json").stages[0].latency
    assert "size_ratios" not in _FILE.to_json()


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ('{"tokens": [512], "ratios": [9]}', "Value error, a ratio is 9"),
        ('{"tokens": [512, 1], "ratios": [1, 1]}', "must be at least 1 and ascend"),
        ('{"tokens": [512], "ratios": []}', "1 sizes and 0 ratios, must be equally many"),
        ('{"tokens": "x", "ratios": []}', "stages[0].size_ratios.tokens is x: "),
    ],
)
def test_wrong_ratios(ratios: str, message: str) -> None:
    """A file may come from anybody."""
    text = _FILE.to_json().replace('"floor_ms": 5.0', f'"floor_ms": 5.0, "size_ratios": {ratios}')
    with pytest.raises(ConfigError) as caught:
        parse_latency_file(text, name="fit.json")
    assert message in str(caught.value)


def test_terms_left_out_are_nothing() -> None:
    """A file written by hand needs only what a token and a pair cost."""
    text = (
        '{"format": "chunkmesh-latency", "version": 1, "model": "m", "device": "d", "stages":'
        ' [{"first_layer": 0, "last_layer": 0, "ms_per_token": 1, "ms_per_pair": 1e-8}]}'
    )
    stage = parse_latency_file(text, name="fit.json").stages[0]
    assert StageLatency(ms_per_token=1.0, ms_per_pair=1e-8) == stage.latency


_PER_NEW = '"ms_per_token": 0.01'
_PREFIX = '"ms_per_prefix_token": 0.0'
_WRONG = {
    (_PER_NEW, '"ms_per_token": -0.2'): (
        "stages[0].ms_per_token is -0.2: Input should be greater than or equal to 0"
    ),
    (_PER_NEW, '"ms_per_token": NaN'): "stages[0].ms_per_token is nan: Input should be a finite",
    (_PER_NEW, '"ms_per_token": "fast"'): "stages[0].ms_per_token is fast: Input should be a valid",
    ('"version": 1', '"version": 2'): "version is 2: Input should be 1",
    ("floor_ms", "flor_ms"): "stages[0].flor_ms is 5.0: Extra inputs are not permitted",
    (_PREFIX, '"ms_per_prefix_token": 1.0'): (
        "stages[0]: Value error, ms_per_prefix_token is 1.0, must be at most ms_per_token, 0.01"
    ),
    ('"first_layer": 15', '"first_layer": 16'): (
        "a stage begins at layer 16, the one before ends with 14"
    ),
    ('"last_layer": 29', '"last_layer": 3'): "last_layer is 3, less than 15",
    ('"threads": 1', '"threads": 0'): "threads is 0: Input should be greater than or equal to 1",
    # Sums over layers and tokens must stay finite, and layers are counted out one by one.
    (_PER_NEW, '"ms_per_token": 1e308'): "is 1e+308: Input should be less than or equal to 1000",
    ('"last_layer": 29', '"last_layer": 1000000000'): "is 1000000000: Input should be less than",
}


@pytest.mark.parametrize(("change", "message"), _WRONG.items())
def test_wrong_fields(change: tuple[str, str], message: str) -> None:
    """Each error names the file, the field, its value and what it must be."""
    good, bad = change
    text = _FILE.to_json()
    assert good in text
    with pytest.raises(ConfigError) as caught:
        parse_latency_file(text.replace(good, bad), name="fit.json")
    assert str(caught.value).startswith("fit.json: ")
    assert message in str(caught.value)


def test_a_fixed_time_of_rows_is_kept() -> None:
    """It is left out where rows have none of their own."""
    latency = dataclasses.replace(_LATENCY, rows_fixed_ms=2.5)
    stage = SavedStage.of(LayerRange(first=0, last=4), latency)
    assert latency == SavedStage.model_validate_json(stage.model_dump_json()).latency
    assert "rows_fixed_ms" not in _FILE.to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("{}", "model: Field required"),
        (" " * 2_000_000, "has 2000000 characters, at most 1048576 are read"),
    ],
)
def test_no_such_file(text: str, message: str) -> None:
    """Whatever file is named by mistake."""
    with pytest.raises(ConfigError, match=r"fit\.json") as caught:
        parse_latency_file(text, name="fit.json")
    assert message in str(caught.value)


def test_no_stage() -> None:
    """A pipeline has at least one."""
    text = _FILE.to_json()
    empty = text[: text.index('"stages"')] + '"stages": []}'
    with pytest.raises(ConfigError, match="stages: Tuple should have at least 1 item"):
        parse_latency_file(empty, name="fit.json")
