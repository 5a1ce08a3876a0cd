"""The profile of a worker that is a process: seen while it runs, kept, bounded, and interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.address import HostPort
from chunkmesh.cli.readiness import STARTING, Readiness, SideDoor
from tests.free_port import free_port

_WAIT_S = 60.0
_WAITING = "waiting: no scheduler answers at 127.0.0.1:"


class WorkerProcess:
    """A stage worker that runs, and finds no scheduler."""

    def __init__(self, process: subprocess.Popen[str], port: int, http_port: int) -> None:
        self.process = process
        self.port = port
        self._door = SideDoor(address=HostPort(host="127.0.0.1", port=http_port))

    def until(self, state: str) -> list[Readiness]:
        """Wait until /ready says a state, or begins with it; return all that it said."""
        deadline_s = time.monotonic() + _WAIT_S
        answers = [STARTING]
        while not answers[-1].state.startswith(state):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline_s, answers[-1]
            answers.append(self._door.ask())
            time.sleep(0.01)
        return answers

    def end(self) -> list[dict[str, object]]:
        """Send SIGTERM; return the log lines of a process that has ended well."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=_WAIT_S)
        assert 0 == self.process.returncode, output
        return [json.loads(line) for line in output.splitlines()]


@contextmanager
def worker(model: Path, *flags: str) -> Iterator[WorkerProcess]:
    """Run a worker of layers 0-1 inside."""
    ports = [free_port() for _ in range(4)]
    names = ("--port", "--http-port", "--data-port", "--scheduler")
    values = (*map(str, ports[:3]), f"127.0.0.1:{ports[3]}")
    words = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    command = [sys.executable, "-m", "stage_worker", f"--model-path={model}", "--layers=0-1"]
    with subprocess.Popen(
        [*command, *words, "--transport=grpc", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield WorkerProcess(process, ports[0], ports[1])
        finally:
            process.kill()


def profiled(lines: list[dict[str, object]]) -> dict[str, object]:
    """Return the one line that says what was measured."""
    (line,) = [line for line in lines if line["event"] == "stage profiled"]
    return line


def health(port: int) -> int:
    """Ask grpc.health.v1."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        status: int = stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status
        return status


def test_progress_is_seen_and_the_next_start_uses_the_disk(tiny: Path, tmp_path: Path) -> None:
    """Orchestrators see that it goes on and do not send requests; a restart costs nothing."""
    kept = f"--profile-dir={tmp_path}"
    size = ("--profile-tokens=512", "--max-total-tokens=4096")
    with worker(tiny, kept, *size) as first:
        first.until("profiling")
        assert health_pb2.HealthCheckResponse.NOT_SERVING == health(first.port)
        answers = first.until(_WAITING)[1:-1]
        lines = first.end()
    line = profiled(lines)
    shares = [answer.progress for answer in answers if answer.state.startswith("profiling")]
    assert "measured" == line["source"]
    assert sorted(shares, key=float) == shares  # type: ignore[arg-type]
    assert any(share is not None and 0.1 < share < 1 for share in shares)
    assert any(" behind 3584" in answer.state for answer in answers)
    is_kept = bool(list(tmp_path.iterdir()))
    assert is_kept or "profile is noisy and will not be kept" in {line["event"] for line in lines}
    with worker(tiny, kept, *size) as second:
        second.until(_WAITING)
        again = profiled(second.end())
    assert ("disk" if is_kept else "measured") == again["source"]


def test_the_timeout_is_kept(tiny: Path, tmp_path: Path) -> None:
    """Also where there is far more to measure than time for it."""
    flags = ("--profile-tokens=8192", "--max-total-tokens=65536", "--profile-timeout=2")
    with worker(tiny, f"--profile-dir={tmp_path}", *flags) as running:
        running.until(_WAITING)
        line = profiled(running.end())
    assert isinstance(line["seconds"], float)
    assert line["seconds"] < 20, "all of it takes minutes; one microbatch may be under way"
    assert line["points"]


def test_off_measures_nothing(tiny: Path, tmp_path: Path) -> None:
    """Such a worker waits for its route at once."""
    with worker(tiny, f"--profile-dir={tmp_path}", "--profile=off") as running:
        states = [answer.state for answer in running.until(_WAITING)]
        lines = running.end()
    assert not any(state.startswith("profiling") for state in states)
    assert "stage profiled" not in {line["event"] for line in lines}
    assert [] == list(tmp_path.iterdir())


def test_a_worker_ends_in_the_middle_of_its_profile(tiny: Path, tmp_path: Path) -> None:
    """SIGTERM is obeyed after the microbatch that runs, and half a profile is not kept."""
    flags = ("--profile-tokens=4096", "--max-total-tokens=65536", "--profile-timeout=60")
    with worker(tiny, f"--profile-dir={tmp_path}", *flags) as running:
        running.until("profiling: 1024 tokens")
        began_s = time.monotonic()
        running.end()
        assert time.monotonic() - began_s < 30, "the profile went on for its 60 s"
    assert [] == list(tmp_path.iterdir())
