"""`chunkmesh up --standby`: two schedulers, of which one may be lost, with real services."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chunkmesh.address import HostPort
from chunkmesh.cli.readiness import Readiness, SideDoor
from tests.eventually import eventually_blocking

pytestmark = pytest.mark.timeout(300)

_WAIT_S = 100
_CHUNKMESH = (sys.executable, "-m", "chunkmesh.cli")


@contextlib.contextmanager
def _up(model: Path, folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    command = [*_CHUNKMESH, "up", "--json", f"--model-path={model}", "--transport=grpc"]
    with subprocess.Popen(
        [*command, f"--log-dir={folder}", "--standby", *more],
        env={**os.environ, "CHUNKMESH_PROFILE": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate(timeout=_WAIT_S)
            yield process, json.loads(line)
        finally:
            if process.poll() is None:
                process.kill()


def _ready(side_door: str) -> Readiness:
    return SideDoor(address=HostPort.parse(side_door)).ask()


def _generated(servers: str) -> list[int]:
    words = ("--max-new-tokens", "8", "--temperature", "0", "--ignore-eos", "--json", "Hello")
    run = subprocess.run(
        [*_CHUNKMESH, "generate", "--server", servers, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
    )
    assert run.returncode == 0, run.stderr
    ids: list[int] = json.loads(run.stdout)["output_ids"]
    return ids


def test_a_lost_scheduler_is_stood_in_for(tiny: Path, tmp_path: Path) -> None:
    """Requests that name both go on, and the mesh ends as it should without the lost one."""
    with _up(tiny, tmp_path / "logs", "--", "--mesh-name", "pair") as (process, endpoints):
        active, standby = endpoints["scheduler"], endpoints["standby"]
        assert (endpoints["mesh_name"], list(endpoints["pids"])[-1]) == ("pair", "standby")
        assert _ready(endpoints["side_door"]).ready
        assert _ready(standby["side_door"]).state == f"standby: standby; active is {active}"
        servers = f"{active},{standby['scheduler']}"
        before = _generated(servers)
        os.kill(endpoints["pids"]["scheduler"], signal.SIGKILL)
        assert _generated(servers) == before
        eventually_blocking(lambda: _ready(standby["side_door"]).ready)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=_WAIT_S)
    assert (process.returncode, len(before)) == (0, 8)
    assert "scheduler ended with signal 9" in errors
    assert "others stand in for it" in errors
    assert not any(map(psutil.pid_exists, endpoints["pids"].values()))


def test_a_lost_standby_is_told_of_and_both_are_missed(tiny: Path, tmp_path: Path) -> None:
    """One is as good as none had been started beside it; without both there is no mesh."""
    with _up(tiny, tmp_path / "logs") as (process, endpoints):
        assert endpoints["mesh_name"].startswith("up-")
        os.kill(endpoints["pids"]["standby"], signal.SIGKILL)
        assert len(_generated(endpoints["scheduler"])) == 8
        os.kill(endpoints["pids"]["scheduler"], signal.SIGKILL)
        _, errors = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 1
    assert "standby ended with signal 9" in errors
    assert "scheduler ended with signal 9" in errors
    assert not any(map(psutil.pid_exists, endpoints["pids"].values()))
