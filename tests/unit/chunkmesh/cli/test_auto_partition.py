"""`--partition auto`: what is asked of the planner, and what is made of its answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chunkmesh.cli.auto_partition import auto_ranges
from chunkmesh.cli.partition import parse_ranges
from chunkmesh.errors import ConfigError
from scheduler.latency_file import LatencyFile, SavedStage

_EQUAL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 264,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder with the config of four equal layers."""
    (tmp_path / "config.json").write_text(json.dumps(_EQUAL))
    return tmp_path


def _latency_file(folder: Path) -> Path:
    """Write measured times: the last two layers take three times what the first two do."""
    first = SavedStage(first_layer=0, last_layer=1, ms_per_token=0.1, ms_per_pair=1e-6)
    last = first.model_copy(update={"first_layer": 2, "last_layer": 3, "ms_per_token": 0.3})
    path = folder / "latency.json"
    path.write_text(LatencyFile(model="mine", device="cpu", stages=(first, last)).to_json())
    return path


def test_equal_layers_are_split_evenly_and_the_log_says_so(model: Path) -> None:
    """A user who asks for the best split must learn that it is the usual one."""
    with capture_logs() as logs:
        found = auto_ranges(model, num_stages=2, scheduler_flags=())
    assert parse_ranges("0-1,2-3") == found
    (line,) = logs
    assert ("layers split", "0-1,2-3") == (line["event"], line["layers"])
    assert "no split is faster" in line["reason"]
    assert "products" in line["by"]


def test_a_wide_layer_is_alone(model: Path) -> None:
    """Without measured times config.json tells what layers multiply: the last has no experts."""
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
    fields = {**_EQUAL, **experts, "intermediate_size": 16384, "mlp_only_layers": [3]}
    (model / "config.json").write_text(json.dumps(fields))
    with capture_logs() as logs:
        found = auto_ranges(model, num_stages=2, scheduler_flags=())
    assert parse_ranges("0-2,3-3") == found
    assert "sooner than with the even split" in logs[0]["reason"]


@pytest.mark.parametrize("is_joined", [False, True])
def test_measured_times_of_the_scheduler_go_first(
    model: Path, tmp_path: Path, *, is_joined: bool
) -> None:
    """The mesh plans with them, whatever layers multiply."""
    path = str(_latency_file(tmp_path))
    flags = (f"--latency-model={path}",) if is_joined else ("--latency-model", path)
    with capture_logs() as logs:
        found = auto_ranges(model, num_stages=2, scheduler_flags=("--page-size", "16", *flags))
    assert parse_ranges("0-2,3-3") == found
    assert "mine on cpu" in logs[0]["by"]


def test_measured_times_may_be_named_by_a_variable(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler reads it as well."""
    monkeypatch.setenv("CHUNKMESH_LATENCY_MODEL", str(_latency_file(tmp_path)))
    assert parse_ranges("0-2,3-3") == auto_ranges(model, num_stages=2, scheduler_flags=())


@pytest.mark.parametrize(
    ("num_stages", "config", "complaint"),
    [
        (5, _EQUAL, "4 layers cannot be split over 5 stages"),
        (2, {"num_hidden_layers": 4}, "hidden_size: Field required"),
    ],
)
def test_what_cannot_be_split_is_refused(
    model: Path, num_stages: int, config: dict[str, int], complaint: str
) -> None:
    """In one line, before anything is started."""
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=f"--partition auto: .*{complaint}"):
        auto_ranges(model, num_stages=num_stages, scheduler_flags=())
