"""The gateway as a process, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from chunkmesh.address import HostPort
from chunkmesh.gateway.__main__ import main
from chunkmesh.gateway.settings import GatewaySettings
from chunkmesh.known_settings import flag_of
from tests.bytes_tokenizer import write_bytes_folder
from tests.fake_generation import FakeGeneration
from tests.gate import Gate
from tests.scripted_stage import Script, scripted_stages
from tests.served_gateway import Served, served_gateway, served_mesh
from tests.started_in_process import refusal

COMMAND = (sys.executable, "-m", "chunkmesh.gateway")
_TIMEOUT_S = 60


@pytest.fixture
def scheduler() -> Iterator[FakeGeneration]:
    """Run a scheduler that plays a script."""
    server = FakeGeneration()
    yield server
    server.close()


def _refused(served: Served) -> bool:
    """Return whether new requests are refused in words."""
    with contextlib.suppress(httpx2.TransportError):
        answer = httpx2.post(f"{served.url}/v1/completions", json={})
        ready = httpx2.get(f"{served.url}/ready")
        return (answer.status_code, ready.json()["state"]) == (503, "draining")
    return False


def test_open_streams_finish(tmp_path: Path) -> None:
    """While new requests are refused, and /ready says why."""
    gate = Gate()
    gate.let(2)
    folder = write_bytes_folder(tmp_path / "m", config={"num_hidden_layers": 1})
    body = {"model": "m", "prompt": "x", "max_tokens": 5, "stream": True}
    with (
        served_mesh(folder, scripted_stages(1, Script(gate=gate))) as served,
        httpx2.Client(base_url=served.url, timeout=30) as http,
        http.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        served.stop()
        until_s = time.monotonic() + 20
        while not _refused(served):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        gate.open()
        events = [line for line in lines if line]
    assert "data: [DONE]" == events[-1]
    assert "length" == json.loads(events[-2][6:])["choices"][0]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_takes_too_long_ends_in_words(scheduler: FakeGeneration, stream: bool) -> None:
    """A whole answer with 503, a stream with an error for its last event."""
    scheduler.hang = True
    body = {"model": "fake", "prompt": "x", "stream": stream}
    with (
        served_gateway(HostPort.parse(scheduler.address), drain_timeout=0.2) as served,
        httpx2.Client(base_url=served.url, timeout=30) as http,
    ):

        async def stop_later() -> None:
            await asyncio.sleep(0.5)
            served.stop()

        asyncio.run_coroutine_threadsafe(stop_later(), served.loop)
        answer = http.post("/v1/completions", json=body)
    last = answer.text.strip().rpartition("\n")[2].removeprefix("data: ")
    assert "the gateway has shut down" == json.loads(last)["error"]["message"]
    assert (200 if stream else 503) == answer.status_code
    assert scheduler.cancelled.wait(10)


def test_a_process_from_start_to_sigterm(scheduler: FakeGeneration) -> None:
    """It says where it listens, serves, and ends with status 0; every line of its log is JSON."""
    with subprocess.Popen(
        [*COMMAND, "--server", scheduler.address, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            lines = [json.loads(process.stderr.readline())]
            while lines[-1]["event"] != "http listening":
                lines.append(json.loads(process.stderr.readline()))
            body = {"model": "fake", "prompt": "x"}
            answer = httpx2.post(f"{lines[-1]['url']}/v1/completions", json=body)
            assert "Hello world" == answer.json()["choices"][0]["text"]
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=_TIMEOUT_S)[1]
        finally:
            process.kill()
    lines += map(json.loads, rest.splitlines())
    assert 0 == process.returncode
    assert {"gateway"} == {line["service"] for line in lines}
    assert ["request ended", "stopped"] == [line["event"] for line in lines[-2:]]


def test_help_names_every_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the form of the other services."""
    monkeypatch.setattr(sys, "argv", ["chunkmesh-gateway", "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert 0 == end.value.code
    shown = capsys.readouterr().out
    assert [] == [name for name in GatewaySettings.model_fields if flag_of(name) not in shown]
    assert "CHUNKMESH_" in shown


def test_a_setting_that_cannot_work_is_one_line() -> None:
    """With status 2."""
    status, line = refusal("chunkmesh-gateway", "--max-requests", "0")
    assert 2 == status
    assert line.startswith("chunkmesh-gateway: --max-requests 0")


def test_what_is_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra is optional, and an import's traceback says little."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SystemExit) as end:
        main()
    assert 2 == end.value.code
    assert "pip install 'chunkmesh[gateway]'" in capsys.readouterr().err
