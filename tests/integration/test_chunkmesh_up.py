"""`chunkmesh up` and LocalMesh with stand-ins for the services and a real Valkey."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.cli.process_family import ChildFailed
from tests.started_in_process import ended

_FAKES = Path(__file__).parent / "fake_services"
_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 60


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """Return a folder that looks like a model of four layers."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 4}')
    return folder


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment where services are fakes and temporary folders are the test's.

    Their path is short enough for that of a socket.
    """
    scratch = tmp_path_factory.mktemp("t")
    path = os.pathsep.join([str(_FAKES), str(_ROOT), *os.environ.get("PYTHONPATH", "").split(":")])
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch), "COLUMNS": "200"}


@contextlib.contextmanager
def _up(
    model_path: Path, environment: dict[str, str], *more: str
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "chunkmesh.cli", "up", "--json"]
    with subprocess.Popen(
        [*command, "--model-path", str(model_path), *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _endpoints(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=_TIMEOUT_S)
    endpoints = json.loads(line)
    assert isinstance(endpoints, dict)
    return endpoints


def _all_gone(pids: dict[str, int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids.values())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(psutil.pid_exists, pids.values()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_everything_down(
    model_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    """The ordinary end: status 0, no process, no folder is left."""
    more = ("--dtype", "bfloat16", "--quantization", "fp8", "--", "--pp-async-batch-depth", "2")
    with _up(model_path, environment, *more) as process:
        endpoints = _endpoints(process)
        names = ["redis", "hicache", "scheduler", "worker-0", "worker-1"]
        assert list(endpoints["pids"]) == names
        assert [worker["layers"] for worker in endpoints["workers"]] == ["0-1", "2-3"]
        log = Path(endpoints["run_dir"], "scheduler.log").read_text()
        assert json.loads(log)["argv"][-2:] == ["--pp-async-batch-depth", "2"]
        for worker in ("worker-0", "worker-1"):
            log = Path(endpoints["run_dir"], f"{worker}.log").read_text()
            assert json.loads(log)["argv"][-4:] == list(more[:4])
        process.send_signal(number)
        _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, _all_gone(endpoints["pids"])) == (0, True)
    assert f"{number.name}: taking the mesh down" in errors
    assert not Path(endpoints["run_dir"]).exists()


def test_a_killed_parent_leaves_nothing(model_path: Path, environment: dict[str, str]) -> None:
    """SIGKILL of `chunkmesh up` ends Valkey and all services."""
    with _up(model_path, environment) as process:
        endpoints = _endpoints(process)
        process.kill()
        process.wait(_TIMEOUT_S)
    assert _all_gone(endpoints["pids"])


def test_a_killed_child_takes_the_mesh_down(model_path: Path, environment: dict[str, str]) -> None:
    """A mesh that lost a stage under `up` says which one, and ends with status 1."""
    with _up(model_path, environment) as process:
        endpoints = _endpoints(process)
        os.kill(endpoints["pids"]["worker-1"], signal.SIGKILL)
        _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, _all_gone(endpoints["pids"])) == (1, True)
    assert "worker-1 ended with signal 9" in errors
    assert Path(endpoints["run_dir"], "worker-1.log").exists()


def test_a_child_that_dies_at_the_start_is_reported(
    model_path: Path, environment: dict[str, str]
) -> None:
    """Its own last words stand in the report; nothing was printed for scripts."""
    with _up(model_path, {**environment, "FAKE_DIES": "2-3"}) as process:
        output, errors = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, output) == (1, "")
    assert "worker-1 ended with exit code 1" in errors
    assert "fake: cannot go on" in errors


def test_a_child_that_never_serves_ends_the_start(
    model_path: Path, environment: dict[str, str]
) -> None:
    """Its last state is named."""
    environment |= {"FAKE_NEVER_READY": "hicache"}
    with _up(model_path, environment, "--ready-timeout", "4") as process:
        _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 1
    assert "hicache is not ready after 4 s (loading)" in errors


def test_ctrl_c_during_the_start_ends_it(model_path: Path, environment: dict[str, str]) -> None:
    """A user who sees a wrong flag does not want to wait."""
    with _up(model_path, {**environment, "FAKE_NEVER_READY": "scheduler"}) as process:
        assert process.stderr is not None
        while "scheduler" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 130


def test_a_second_ctrl_c_does_not_wait_for_a_stubborn_child(
    model_path: Path, environment: dict[str, str]
) -> None:
    """The first one asks, the second one kills."""
    with _up(model_path, {**environment, "FAKE_STUBBORN": "scheduler"}) as process:
        endpoints = _endpoints(process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "taking the mesh down" not in process.stderr.readline():
            assert process.poll() is None
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_TIMEOUT_S)
    assert time.monotonic() - started < 20, "it waited for the child, whose grace is 40 s"
    assert _all_gone(endpoints["pids"])


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--stages", "5"], "4 layers cannot be split over 5 stages"),
        (["--layers", "0-1,3-3"], "layers 2 missing"),
        (["--layers", "0-9"], "reach past a model of 4 layers"),
        (["--layers", "0-1,2-3", "--partition", "auto"], "exclude each other"),
        (["stray"], "'stray' is not expected here"),
        (["--no-cache", "--redis-url", "redis://r"], "exclude each other"),
        (["--no-cache", "--hicache-port", "7"], "exclude each other"),
        (["--standby", "--no-cache"], "who leads is agreed in the Redis of the cache"),
        (
            ["--standby", "--redis-url", "redis://:secret@127.0.0.1:1"],
            "--standby needs the Redis of --redis-url redis://:***@127.0.0.1:1: Connection refused",
        ),
        (["--standby", "--redis-url", "unix:///none.sock"], "No such file or directory"),
        (["--layers", "0-1,2-3", "--stages", "2"], "--stages and --layers exclude each other"),
        (["--redis-url", "cache.local:6379"], "redis://, rediss://, unix://"),
        (["--max-total-tokens", "63"], "at least one page of 64 tokens"),
        (["--page-size", "16", "--max-total-tokens", "15"], "at least one page of 16 tokens"),
        (["--max-running-requests", "8"], "up ... -- --max-running-requests ..."),
        (["--profile", "off"], "set CHUNKMESH_PROFILE"),
        (["--block-size", "8"], "up has --page-size for that"),
        (["--", "--port", "777"], "give --port before --"),
        (["--", "--block-size=8"], "give --page-size before --"),
        (["--", "--max-runing-requests", "8"], "did you mean --max-running-requests?"),
        (["--", "--print-config"], "the scheduler would end"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(
    model_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], complaint: str
) -> None:
    """Status 2, one line, and nothing was started."""
    status, errors = ended("chunkmesh", "up", "--json", "--model-path", str(model_path), *more)
    assert (status, capsys.readouterr().out) == (2, "")
    assert errors.startswith("chunkmesh: ")
    assert complaint in errors
    assert len(errors.splitlines()) == 1


def test_local_mesh_runs_without_a_cache(
    model_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Benchmarks use the mesh from Python and often without a cache."""
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    options = MeshOptions(model_path=model_path, num_stages=1, cache=False)
    with LocalMesh(options) as mesh:
        assert [state.name for state in mesh.processes()] == ["scheduler", "worker-0"]
        assert mesh.scheduler_address == str(mesh.endpoints.scheduler)
        pids = {state.name: state.pid for state in mesh.processes()}
        mesh.check()
    assert _all_gone(pids)
    assert not mesh.run_dir.exists()


def test_the_scheduler_ends_before_the_workers(
    model_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It can let running requests end only while there are workers."""
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    options = MeshOptions(model_path=model_path, num_stages=2, cache=False, log_dir=tmp_path / "l")
    with LocalMesh(options):
        pass
    logs = [tmp_path / "l" / f"{name}.log" for name in ("scheduler", "worker-0", "worker-1")]
    assert all("fake: stopped" in log.read_text() for log in logs)
    scheduler, *workers = (log.stat().st_mtime_ns for log in logs)
    assert scheduler < min(workers)


def test_logs_stay_where_the_user_wants_them(
    model_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """--log-dir is never removed; after a failure the temporary folder stays as well."""
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    monkeypatch.setenv("FAKE_DIES", "scheduler")
    kept = MeshOptions(model_path=model_path, cache=False, log_dir=tmp_path / "logs")
    with pytest.raises(ChildFailed), LocalMesh(kept):
        pass
    assert "cannot go on" in (tmp_path / "logs" / "scheduler.log").read_text()
