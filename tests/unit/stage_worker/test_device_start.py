"""The start of a stage on a GPU, whose memory and multiprocessors are made up."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest
import structlog
import torch

from chunkmesh.errors import ConfigError
from stage_worker import device_start
from stage_worker.device_start import DeviceLimits, DeviceStart
from stage_worker.paged.stage import PagedStage
from tests.repeated_steps import RepeatingRecorder, load_replayable
from tests.tiny_models import make_tiny

CPU = torch.device("cpu")
FREE_BYTES = 1 << 30


@pytest.fixture
def stage(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> PagedStage:
    """Load a stage, and let torch tell of a small GPU."""
    properties = types.SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (FREE_BYTES, 2 * FREE_BYTES))
    monkeypatch.setattr(device_start, "CudaRecorder", lambda _device: RepeatingRecorder())
    make_tiny(tmp_path, "Qwen3")
    return load_replayable(tmp_path, range(4))


def limits(**changes: Any) -> DeviceLimits:
    """Return what a worker is told, with changes."""
    told: dict[str, Any] = {
        "warmup_mode": "parallel",
        "cuda_graph_max_bs": 4,
        "mem_fraction": 0.5,
        "max_total_tokens": None,
    }
    return DeviceLimits(**(told | changes))


def test_capacity_is_a_share_of_what_is_free(stage: PagedStage, tmp_path: pathlib.Path) -> None:
    """Links of the largest batch take theirs first, and a page is for filler."""
    start = DeviceStart(limits(), stage, tmp_path)
    tokens = start.prepare()
    about = stage.description
    link_bytes = 4 * 256 * about.hidden_size * about.dtype.itemsize
    usable_bytes = (FREE_BYTES - link_bytes) / 2
    assert tokens == (usable_bytes // (128 * about.kv_bytes_per_token) - 1) * 128


def test_a_capacity_that_is_told_wins(stage: PagedStage, tmp_path: pathlib.Path) -> None:
    """Whatever is free, and however little."""
    asked = limits(max_total_tokens=640, mem_fraction=1e-9)
    assert DeviceStart(asked, stage, tmp_path).prepare() == 640


def test_too_little_memory_ends_the_worker(stage: PagedStage, tmp_path: pathlib.Path) -> None:
    """Before it joins a mesh that it could not serve in."""
    with pytest.raises(ConfigError, match="--mem-fraction 1e-09"):
        DeviceStart(limits(mem_fraction=1e-9), stage, tmp_path).prepare()


def test_progress_until_it_is_warm(stage: PagedStage, tmp_path: pathlib.Path) -> None:
    """/ready says that it warms up, and then nothing more."""
    start = DeviceStart(limits(), stage, tmp_path)
    ready = start.readiness()
    assert ready is not None
    assert (ready.state, ready.progress) == ("warming up", 0.0)
    start.prepare()
    assert start.readiness() is None


@pytest.mark.parametrize(("mode", "num_warm"), [("parallel", 1), ("serial", 1), ("off", 0)])
def test_modes(stage: PagedStage, tmp_path: pathlib.Path, mode: Any, num_warm: int) -> None:
    """Serial holds a lock meanwhile; off compiles nothing before the first request."""
    with structlog.testing.capture_logs() as logs:
        DeviceStart(limits(warmup_mode=mode), stage, tmp_path).prepare()
    assert sum(entry["event"] == "kernels are warm" for entry in logs) == num_warm
    assert (tmp_path / "warm-up.lock").exists() == (mode == "serial")


@pytest.mark.parametrize(
    ("most_rows", "told"), [(4, "CUDA graphs up to 4 rows"), (0, "one by one")]
)
def test_replays_are_told(
    stage: PagedStage, tmp_path: pathlib.Path, most_rows: int, told: str
) -> None:
    """GetServerInfo names what launches decode steps, also if it was told to."""
    DeviceStart(limits(cuda_graph_max_bs=most_rows), stage, tmp_path).prepare()
    names = {each.operation: each.name for each in stage.description.backends}
    assert names["decode launches"] == told
