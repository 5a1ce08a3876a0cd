"""The profile of a worker that is a process: seen while it runs, kept, bounded, and interrupted."""

from __future__ import annotations

import dataclasses
import json
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
from tests.service_process import ServiceProcess

_WAIT_S = 60.0
_KEPT = "kept"
_WAITING = "waiting: no scheduler answers at 127.0.0.1:"


@dataclasses.dataclass(slots=True, kw_only=True)
class LonelyWorker(ServiceProcess):
    """A stage worker that finds no scheduler."""

    port: int
    """Of its health."""
    door: SideDoor

    def until(self, state: str) -> list[Readiness]:
        """Wait until /ready says a state, or begins with it; return all that it said."""
        deadline_s = time.monotonic() + _WAIT_S
        answers = [STARTING]
        while not answers[-1].state.startswith(state):
            assert time.monotonic() < deadline_s, (answers[-1], self.log_path.read_text())
            answers.append(self.door.ask())
            time.sleep(0.01)
        return answers

    def logged(self) -> list[dict[str, object]]:
        """Send SIGTERM; return the log lines of a process that has ended well."""
        assert 0 == self.end(), self.log_path.read_text()
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]


@contextmanager
def worker(model: Path, folder: Path, *flags: str) -> Iterator[LonelyWorker]:
    """Run a worker of layers 0-1 inside; its log and what it keeps are in folder."""
    port, http_port, data_port, nobody = (free_port() for _ in range(4))
    process = LonelyWorker(
        command=(
            "stage-worker", f"--model-path={model}", "--layers=0-1", f"--port={port}",
            f"--http-port={http_port}", f"--data-port={data_port}",
            f"--scheduler=127.0.0.1:{nobody}", f"--profile-dir={folder / _KEPT}",
            "--transport=grpc",
            *flags,
        ),
        log_path=folder / f"worker-{port}.log",
        port=port,
        door=SideDoor(address=HostPort(host="127.0.0.1", port=http_port)),
    )  # fmt: skip
    process.start()
    try:
        yield process
    finally:
        process.close()


def kept(folder: Path) -> list[Path]:
    """Return what workers have kept of their profiles."""
    return list((folder / _KEPT).glob("*"))


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
    size = ("--profile-tokens=512", "--max-total-tokens=4096")
    with worker(tiny, tmp_path, *size) as first:
        first.until("profiling")
        assert health_pb2.HealthCheckResponse.NOT_SERVING == health(first.port)
        answers = first.until(_WAITING)[1:-1]
        lines = first.logged()
    line = profiled(lines)
    shares = [answer.progress for answer in answers if answer.state.startswith("profiling")]
    assert "measured" == line["source"]
    assert sorted(shares, key=float) == shares  # type: ignore[arg-type]
    assert any(share is not None and 0.1 < share < 1 for share in shares)
    assert any(" behind 3584" in answer.state for answer in answers)
    is_kept = bool(kept(tmp_path))
    assert is_kept or "profile is noisy and will not be kept" in {line["event"] for line in lines}
    with worker(tiny, tmp_path, *size) as second:
        second.until(_WAITING)
        again = profiled(second.logged())
    assert ("disk" if is_kept else "measured") == again["source"]


def test_the_timeout_is_kept(tiny: Path, tmp_path: Path) -> None:
    """Also where there is far more to measure than time for it."""
    flags = ("--profile-tokens=8192", "--max-total-tokens=65536", "--profile-timeout=2")
    with worker(tiny, tmp_path, *flags) as running:
        running.until(_WAITING)
        line = profiled(running.logged())
    assert isinstance(line["seconds"], float)
    assert line["seconds"] < 20, "all of it takes minutes; one microbatch may be under way"
    assert line["points"]


def test_off_measures_nothing(tiny: Path, tmp_path: Path) -> None:
    """Such a worker waits for its route at once."""
    with worker(tiny, tmp_path, "--profile=off") as running:
        states = [answer.state for answer in running.until(_WAITING)]
        lines = running.logged()
    assert not any(state.startswith("profiling") for state in states)
    assert "stage profiled" not in {line["event"] for line in lines}
    assert [] == kept(tmp_path)


def test_a_worker_ends_in_the_middle_of_its_profile(tiny: Path, tmp_path: Path) -> None:
    """SIGTERM is obeyed after the microbatch that runs, and half a profile is not kept."""
    flags = ("--profile-tokens=4096", "--max-total-tokens=65536", "--profile-timeout=60")
    with worker(tiny, tmp_path, *flags) as running:
        running.until("profiling: 1024 tokens")
        began_s = time.monotonic()
        running.logged()
        assert time.monotonic() - began_s < 30, "the profile went on for its 60 s"
    assert [] == kept(tmp_path)
