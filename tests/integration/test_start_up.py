"""Services started by hand: they say what is wrong, and form a mesh if nothing is."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.bytes_tokenizer import write_bytes_folder
from tests.forked_services import Services
from tests.free_port import free_port
from tests.tiny_models import make_tiny_llama

BIN = Path(sys.executable).parent
WAIT_S = 60


def refusal_of_program(*command: str) -> str:
    """Return the reason of the program that users start."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert 2 == done.returncode, done.stderr
    return done.stderr.splitlines()[-1]


def worker(model: Path, layers: str, internal: int, *more: str) -> tuple[str, ...]:
    """Return the command of a stage worker that measures nothing; later flags win."""
    return (
        "stage-worker",
        f"--model-path={model}",
        f"--layers={layers}",
        f"--scheduler=127.0.0.1:{internal}",
        "--port=0",
        "--http-port=0",
        f"--data-port={free_port()}",
        "--profile=off",
        *more,
    )


def ready(http_port: int) -> dict[str, object]:
    """Ask a side door; an answer of 503 is an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/ready", timeout=5) as answer:
            body: dict[str, object] = json.load(answer)
    except urllib.error.HTTPError as error:
        body = json.load(error)
    except OSError:
        body = {"ready": False, "reason": "not reached"}
    return body


def wait_for(http_port: int, reason: str) -> None:
    """Wait until /ready gives a reason; an empty one means ready."""
    deadline_s = time.monotonic() + WAIT_S
    while (body := ready(http_port))["reason"] != reason:
        assert time.monotonic() < deadline_s, body
        time.sleep(0.05)


@contextlib.contextmanager
def scheduler(services: Services, model: Path) -> Iterator[tuple[int, int, int]]:
    """Run a scheduler; yield its users', internal and side door ports."""
    port, internal, http = free_port(), free_port(), free_port()
    with services.started(
        "chunkmesh-scheduler", f"--model-path={model}", f"--port={port}",
        f"--internal-port={internal}", f"--http-port={http}", "--page-size=16",
    ):  # fmt: skip
        wait_for(http, "no worker holds layers 0-3")
        yield port, internal, http


def test_layers_that_the_model_does_not_have(tiny: Path) -> None:
    """The range and the number of layers are named."""
    line = refusal_of_program(*worker(tiny, "2-9", 1))
    assert "2-9" in line
    assert "4 layers" in line


def test_a_folder_without_a_model(services: Services, tmp_path: Path) -> None:
    """The missing file is named, by scheduler and worker."""
    empty = tmp_path / "empty"
    empty.mkdir()
    commands = (
        worker(empty, "0-1", 1),
        ("chunkmesh-scheduler", f"--model-path={empty}"),
        ("chunkmesh-scheduler", f"--model-path={tmp_path / 'nowhere'}"),
    )
    for command in commands:
        assert str(command[1].removeprefix("--model-path=")) in services.refusal(*command)


def test_an_explicit_port_in_use(services: Services, tiny: Path) -> None:
    """Ports that were asked for are taken or refused, never shared or moved."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        commands = (
            ("chunkmesh-scheduler", f"--model-path={tiny}", f"--port={port}", "--internal-port=0"),
            ("chunkmesh-scheduler", f"--model-path={tiny}", "--port=0", f"--internal-port={port}"),
            ("chunkmesh-scheduler", f"--model-path={tiny}", "--port=0", "--internal-port=0",
             f"--http-port={port}"),
            worker(tiny, "0-1", 1, f"--data-port={port}"),
            worker(tiny, "0-1", 1, f"--data-port={port}", "--transport=grpc"),
            ("hicache-server", f"--port={port}"),
        )  # fmt: skip
        for command in commands:
            assert str(port) in services.refusal(*command), command


def test_layers_that_do_not_tile(services: Services, tiny: Path) -> None:
    """The hole is named, a range that overlaps in part is refused, the mesh waits unharmed."""
    with (
        scheduler(services, tiny) as (_, internal, http),
        services.started(*worker(tiny, "0-1", internal)),
    ):
        wait_for(http, "no worker holds layers 2-3")
        line = services.refusal(*worker(tiny, "1-3", internal))
        assert "1-3" in line
        assert "0-1" in line
        assert "overlap" in line
        assert "no worker holds layers 2-3" == ready(http)["reason"]


def test_workers_that_could_not_serve_one_model(
    services: Services, tiny: Path, tmp_path: Path
) -> None:
    """Another element type, a shard that is gone (O24): refused by name, and health stays off."""
    sharded = tmp_path / "sharded"
    write_bytes_folder(sharded)
    make_tiny_llama(sharded, tie_word_embeddings=True, max_shard_size="300KB")
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with (
        scheduler(services, tiny) as (port, internal, http),
        services.started(*worker(tiny, "0-1", internal)),
    ):
        wait_for(http, "no worker holds layers 2-3")
        other_type = services.refusal(*worker(tiny, "2-3", internal, "--dtype=bfloat16"))
        lost_shard = services.refusal(*worker(sharded, "0-3", internal))
        assert "dtype is bfloat16, that of the worker with layers 0-1 is float32" in other_type
        assert shard.name in lost_shard
        assert "no worker holds layers 2-3" == ready(http)["reason"]
        assert not serves(port)


@pytest.mark.parametrize("transport", ["ucx", "grpc"])
def test_a_mesh_wired_by_hand(services: Services, tiny: Path, transport: str) -> None:
    """The commands of the README: --peer names the next stage."""
    data = free_port()
    way = f"--transport={transport}", "--profile=auto"
    with (
        scheduler(services, tiny) as (port, internal, http),
        services.started(*worker(tiny, "0-1", internal, f"--peer=127.0.0.1:{data}", *way)) as first,
        services.started(*worker(tiny, "2:4", internal, f"--data-port={data}", *way)),
    ):
        wait_for(http, "")
        generated(port)
        first.send_signal(signal.SIGTERM)
        assert 0 == first.wait(WAIT_S)
    assert "preferred peer" not in first.output


def test_a_wrong_peer_is_told_of_and_gone_round(services: Services, tiny: Path) -> None:
    """The scheduler knows the next stage; a dead --peer costs a warning."""
    with (
        scheduler(services, tiny) as (port, internal, http),
        services.started(*worker(tiny, "0-1", internal, "--peer=127.0.0.1:9")) as first,
        services.started(*worker(tiny, "2-3", internal)),
    ):
        wait_for(http, "")
        generated(port)
    warning = next(line for line in first.output.splitlines() if "preferred peer" in line)
    assert "127.0.0.1:9" in warning


def generated(port: int) -> None:
    """Run a request by the command line."""
    done = subprocess.run(
        [str(BIN / "chunkmesh"), "generate", "hello", f"--server=127.0.0.1:{port}", "--json",
         "--max-new-tokens=3", "--ignore-eos"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    assert 3 == json.loads(done.stdout)["completion_tokens"]


def serves(port: int) -> bool:
    """Ask grpc.health.v1 of a server, for itself and for its service."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        requests = [
            health_pb2.HealthCheckRequest(service=name) for name in ("", "chunkmesh.v1.Generation")
        ]
        statuses = {stub.Check(request, timeout=5).status for request in requests}
    (status,) = statuses
    return bool(status == health_pb2.HealthCheckResponse.SERVING)


def test_a_worker_that_dies_and_returns(services: Services, tiny: Path) -> None:
    """Losing a stage turns health off and names its layers; its return heals the mesh."""
    with scheduler(services, tiny) as (port, internal, http):
        assert not serves(port)
        with services.started(*worker(tiny, "0-1", internal)):
            with services.started(*worker(tiny, "2-3", internal)) as last:
                wait_for(http, "")
                assert serves(port)
                last.kill()
                wait_for(http, "no worker holds layers 2-3")
                assert not serves(port)
            with services.started(*worker(tiny, "2-3", internal)):
                wait_for(http, "")
                assert serves(port)
                generated(port)
