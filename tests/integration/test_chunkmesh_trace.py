"""`chunkmesh trace` against a scripted Generation server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from chunkmesh.errors import InvalidRequest
from tests.cli_run import run_cli
from tests.fake_generation import FakeGeneration
from tests.told_timelines import told


@pytest.fixture
def server() -> Iterator[FakeGeneration]:
    """Yield a server that remembers one request."""
    made = FakeGeneration()
    made.timelines = [told("a", [(0, 0, 64), (1, 64, 64)])]
    yield made
    made.close()


def _run(server: FakeGeneration, *words: str) -> Result:
    return run_cli("trace", "--server", server.address, *words)


def test_help_names_the_flags() -> None:
    """The first thing that one tries."""
    result = run_cli("trace", "--help")
    assert result.exit_code == 0
    for flag in ("--server", "--last", "--request-id", "--format", "--output"):
        assert flag in result.stdout


def test_the_last_request_is_shown_as_text(server: FakeGeneration) -> None:
    """Without any flag, in a terminal."""
    result = _run(server)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("a: 128 tokens")
    assert "bubble ratio" in result.stdout
    assert (1, []) == (
        server.timeline_requests[0].last,
        list(server.timeline_requests[0].request_ids),
    )


def test_requests_are_asked_for_by_number_or_id(server: FakeGeneration) -> None:
    """What is asked goes to the scheduler as it is."""
    _run(server, "--last", "5")
    _run(server, "--request-id", "x", "--request-id", "y")
    by_number, by_id = server.timeline_requests
    assert (5, []) == (by_number.last, list(by_number.request_ids))
    assert (0, ["x", "y"]) == (by_id.last, list(by_id.request_ids))


def test_the_chrome_trace_is_json_on_standard_output(server: FakeGeneration) -> None:
    """Fit for a pipe."""
    result = _run(server, "--format", "chrome")
    assert result.exit_code == 0
    assert "traceEvents" in json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("t.json", b'{"traceEvents"'),
        ("t.png", b"\x89PNG"),
        ("t.svg", b"<?xml"),
        ("t.txt", b"a: 128"),
    ],
)
def test_the_suffix_says_the_format(
    server: FakeGeneration, tmp_path: Path, name: str, begin: bytes
) -> None:
    """Nobody wants to say it twice."""
    path = tmp_path / name
    result = _run(server, "--output", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert path.read_bytes().startswith(begin)
    assert result.stdout == f"{path}: 1 request, 4 microbatches on stages\n"


def test_the_format_goes_before_the_suffix(server: FakeGeneration, tmp_path: Path) -> None:
    """A trace may be called anything."""
    path = tmp_path / "t.trace"
    assert _run(server, "--format", "chrome", "--output", str(path)).exit_code == 0
    assert "traceEvents" in json.loads(path.read_text())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--last", "1", "--request-id", "x"], "--last or --request-id"),
        (["--last", "0"], "--last"),
        (["--last", "33"], "--last"),
        (["--format", "pdf"], "--format"),
        (["--format", "png"], "--output"),
        (["--output", "t.gif"], "--format"),
        (["--output", "/nowhere/t.json"], "/nowhere/t.json"),
        (["--server", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_call_is_a_usage_error(
    server: FakeGeneration, words: list[str], complaint: str
) -> None:
    """Usage errors end with 2, as everywhere."""
    result = _run(server, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr


def test_an_unknown_request_is_an_error_of_one_line(server: FakeGeneration) -> None:
    """As the scheduler says it."""
    server.error = InvalidRequest("no timeline of request 'x' is kept", field="request_ids")
    result = _run(server, "--request-id", "x")
    assert (result.exit_code, result.stdout) == (2, "")
    expected = "chunkmesh: invalid request: no timeline of request 'x' is kept (--request-id)\n"
    assert expected == result.stderr


def test_a_mesh_that_served_nothing_says_so(server: FakeGeneration) -> None:
    """An empty picture would look like a fault."""
    server.timelines = []
    result = _run(server)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has served no request yet" in result.stderr


def test_an_unreachable_server_is_named_with_a_remedy() -> None:
    """The commonest failure of a newcomer."""
    result = run_cli("trace", "--server", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "no answer from 127.0.0.1:1" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_picture_without_matplotlib_names_the_remedy(
    server: FakeGeneration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with an extra only."""
    monkeypatch.delitem(sys.modules, "chunkmesh.cli.trace_picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr("chunkmesh.cli.trace_picture", raising=False)
    result = _run(server, "--output", str(tmp_path / "t.png"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "chunkmesh[demo]" in result.stderr


def test_a_reader_that_has_seen_enough_is_no_fault_of_a_file(server: FakeGeneration) -> None:
    """`chunkmesh trace | head` closes the pipe early."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-u", "-m", "chunkmesh.cli", "trace", "--server", server.address]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
