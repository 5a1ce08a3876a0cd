"""`chunkmesh status` against a scripted Generation server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb
from tests.cli_run import run_cli
from tests.fake_generation import FakeGeneration

_TIMEOUT_S = 30


@pytest.fixture
def server() -> Iterator[FakeGeneration]:
    """Yield a server that answers Hello world."""
    made = FakeGeneration()
    yield made
    made.close()


def _run(command: str, *words: str, typed: str | None = None) -> Result:
    return run_cli(command, *words, typed=typed)


def test_status_shows_stages_and_links(server: FakeGeneration) -> None:
    """Which layers, where, and how they are linked."""
    result = _run("status", "--server", server.address)
    assert result.exit_code == 0
    assert "mesh      ready" in result.stdout
    assert "pages     10 of 1000 in use, 64 tokens each" in result.stdout
    for text in ("0-14", "15-29", "tcp"):
        assert text in result.stdout


def test_status_json_has_every_field(server: FakeGeneration) -> None:
    """Scripts rely on zeros being there."""
    fields = json.loads(_run("status", "--json", "--server", server.address).stdout)
    assert (fields["ready"], fields["num_requests_waiting"], fields["cache_fault"]) == (True, 0, "")
    assert fields["workers"][0]["outbound"] == {"transport": "tcp", "rtt_us": 250}


def test_status_json_tells_layers_and_numbers_as_users_write_them(server: FakeGeneration) -> None:
    """Both ends included, as --layers has it; numbers of 64 bits are no texts."""
    server.info.missing_layers.add(first=30, last=32)
    fields = json.loads(_run("status", "--json", "--server", server.address).stdout)
    assert [worker["layers"] for worker in fields["workers"]] == ["0-14", "15-29"]
    assert fields["missing_layers"] == ["30-31"]
    assert (fields["epoch"], fields["workers"][0]["kv_capacity_tokens"]) == (3, 65536)
    assert "stage_index" in fields["workers"][0]
    assert "outbound" not in fields["workers"][1]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_status_of_a_mesh_that_is_not_ready_ends_with_1(
    server: FakeGeneration, more: list[str]
) -> None:
    """Scripts can wait for a mesh without reading what is printed, which is all there."""
    server.info = pb.GetServerInfoResponse(ready=False, reason="layers 15-29 have no worker")
    result = _run("status", "--server", server.address, *more)
    assert (result.exit_code, result.stderr) == (1, "")
    assert "layers 15-29 have no worker" in result.stdout


def test_status_says_what_it_saved(server: FakeGeneration, tmp_path: Path) -> None:
    """On standard error, for standard output may be JSON; what cannot be saved is named."""
    server.info.fits.add(layers=common_pb2.LayerRange(first=0, last=30))
    path = tmp_path / "latency.json"
    words = ("status", "--json", "--server", server.address, "--save-latency-model")
    result = _run(*words, str(path))
    assert (result.exit_code, result.stderr) == (0, f"{path}: latencies of 1 stage\n")
    assert json.loads(path.read_text())["stages"][0]["last_layer"] == 29
    nowhere = tmp_path / "no" / "latency.json"
    result = _run(*words, str(nowhere))
    expected = f"chunkmesh: --save-latency-model {nowhere}: No such file or directory\n"
    assert (result.exit_code, result.stderr) == (2, expected)
