"""Which devices the stages of a mesh on one machine are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.cli import gpus
from chunkmesh.cli.gpus import stage_devices
from chunkmesh.errors import ConfigError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the devices' folder of a machine on which torch would see three GPUs."""
    monkeypatch.setattr(gpus, "_DEV", tmp_path)
    monkeypatch.setattr(gpus, "_count", lambda: 3)
    return tmp_path


def test_without_a_driver_workers_choose(machine: Path) -> None:
    """Most machines have no GPU, and loading torch to learn that takes seconds."""
    assert stage_devices("auto", None) == ()


def test_with_a_driver_stages_take_gpus_in_turn(machine: Path) -> None:
    """Stage i computes on GPU i, modulo their number."""
    (machine / "nvidia0").touch()
    assert stage_devices("auto", None) == ("cuda:0", "cuda:1", "cuda:2")


def test_listed_gpus_are_taken_as_they_are(machine: Path) -> None:
    """One GPU may stand twice, to try a pipeline on it."""
    assert stage_devices("auto", "2,0,2") == ("cuda:2", "cuda:0", "cuda:2")


def test_the_cpu_can_be_asked_for(machine: Path) -> None:
    """Also where there are GPUs."""
    (machine / "nvidia0").touch()
    assert stage_devices("cpu", None) == ("cpu",)


@pytest.mark.parametrize(
    ("kind", "listed", "message"),
    [
        ("cpu", "0", "--devices 0 contradicts --device cpu"),
        ("auto", "0-1", "--devices 0-1: indices of GPUs, such as 0,1"),
    ],
)
def test_contradictions_are_refused(
    machine: Path, kind: gpus.DeviceKind, listed: str, message: str
) -> None:
    """The text names the flag."""
    with pytest.raises(ConfigError, match=message):
        stage_devices(kind, listed)


def test_gpus_that_are_not_there_are_refused(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for GPUs does not want to wait for a CPU."""
    monkeypatch.setattr(gpus, "_count", lambda: 0)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        stage_devices("cuda", None)
