"""Each row of docs/start-up-errors.md: the service ends with status 2, and says just that."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chunkmesh import PROTOCOL_VERSION
from chunkmesh.grpc_client import channel
from chunkmesh.layers import LayerRange
from chunkmesh.v1 import hicache_pb2, hicache_pb2_grpc
from hicache.server import running
from hicache.settings import HiCacheSettings
from scheduler.latency_file import LatencyFile, SavedStage
from scheduler.latency_model import StageLatency
from scheduler.prospect import Patience
from scheduler.registry import Registry
from scheduler.worker_check import Refused
from scheduler.worker_hello import WorkerHello
from tests.started_in_process import refusal
from tests.tiny_models import edit_config

ANY = "\u2026"
"""What stands in the document for paths, numbers and reasons."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "start-up-errors.md"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What command lines are made of."""

    model: Path
    """A sound folder of four layers; only read."""
    folder: Path
    """An empty folder."""
    port: int
    """A port in use."""

    def copy(self) -> Path:
        """Return a copy of the model that may be damaged."""
        copied = self.folder / "copy"
        shutil.copytree(self.model, copied)
        return copied

    def toml(self, text: str) -> str:
        """Return the flag of a file of settings."""
        path = self.folder / "settings.toml"
        path.write_text(text)
        return f"--config={path}"


Command = tuple[str, ...]


def _scheduler(given: Given, *more: str, model: Path | None = None) -> Command:
    ports = ("--port=0", "--internal-port=0", "--http-port=0")
    return ("chunkmesh-scheduler", f"--model-path={model or given.model}", *ports, *more)


def _worker(given: Given, *more: str, model: Path | None = None) -> Command:
    ports = ("--port=0", "--http-port=0", "--data-port=0", "--profile=off", "--transport=grpc")
    where = f"--model-path={model or given.model}"
    return ("stage-worker", where, "--layers=0-3", "--scheduler=127.0.0.1:1", *ports, *more)


def _hicache(*more: str) -> Command:
    return ("hicache-server", "--port=0", "--http-port=0", *more)


def _no_config(given: Given) -> Path:
    folder = given.copy()
    (folder / "config.json").write_text("{")
    return folder


def _directory_in_place_of_a_file(given: Given) -> Path:
    folder = given.copy()
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").mkdir()
    return folder


def _only_config(given: Given) -> Path:
    folder = given.folder / "config only"
    folder.mkdir()
    shutil.copy(given.model / "config.json", folder)
    return folder


def _other_architecture(given: Given) -> Path:
    folder = given.copy()
    edit_config(folder, architectures=["Other"])
    return folder


def _missing_shard(given: Given) -> Path:
    folder = _only_config(given)
    names = load_file(given.model / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "gone.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _with_weights(given: Given, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    folder = _only_config(given)
    tensors = load_file(given.model / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _damaged_weights(given: Given) -> Path:
    folder = _only_config(given)
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    return folder


def _short_secret(given: Given) -> str:
    path = given.folder / "secret"
    path.write_bytes(b"short\n")
    return f"--cache-secret-file={path}"


def _other_latency(given: Given) -> str:
    latency = StageLatency(ms_per_token=0.1, ms_per_pair=1e-6)
    stage = SavedStage.of(LayerRange(first=0, last=2), latency)
    path = given.folder / "latency.json"
    path.write_text(LatencyFile(model="m", device="cpu", stages=(stage,)).to_json())
    return f"--latency-model={path}"


CASES: Mapping[str, Callable[[Given], Command]] = {
    "unknown flag": lambda given: _scheduler(given, "--page-sise=16"),
    "unknown variable": lambda given: ("CHUNKMESH_PAGE_SISE=1", *_scheduler(given)),
    "unknown key of the TOML file": lambda given: _scheduler(given, given.toml("page-sise = 1\n")),
    "unreadable TOML file": lambda given: _scheduler(given, f"--config={given.folder / 'x.toml'}"),
    "TOML file that is none": lambda given: _scheduler(given, given.toml("page-size\n")),
    "required flag missing": lambda _given: ("chunkmesh-scheduler",),
    "value of another type": lambda given: _scheduler(given, "--page-size=many"),
    "value out of range": lambda given: _scheduler(given, "--page-size=0"),
    "port over 65535": lambda given: _scheduler(given, "--port=70000"),
    "address that is none": lambda given: _worker(given, "--scheduler=localhost"),
    "address with a scheme": lambda given: _worker(given, "--scheduler=http://h:1"),
    "IPv6 address without brackets": lambda given: _worker(given, "--scheduler=::1:50052"),
    "host in brackets": lambda given: _scheduler(given, "--host=[::1]"),
    "host that is none": lambda given: _scheduler(given, "--advertise-host=a b"),
    "worker on every network": lambda given: _worker(given, "--host=0.0.0.0"),
    "layers that are no range": lambda given: _worker(given, "--layers=5"),
    "layers outside the model": lambda given: _worker(given, "--layers=2-9"),
    "port in use, users'": lambda given: _scheduler(given, f"--port={given.port}"),
    "port in use, internal": lambda given: _scheduler(given, f"--internal-port={given.port}"),
    "port in use, side door": lambda given: _scheduler(given, f"--http-port={given.port}"),
    "port in use, worker's": lambda given: _worker(given, f"--port={given.port}"),
    "port in use, worker's data": lambda given: _worker(
        given, f"--data-port={given.port}", "--transport=ucx"
    ),
    "port in use, HiCache": lambda given: _hicache(f"--port={given.port}"),
    "host that no name service knows": lambda given: _scheduler(given, "--host=nowhere.invalid"),
    "host of another machine": lambda given: _scheduler(given, "--host=192.0.2.1"),
    "model folder missing": lambda given: _scheduler(given, model=given.folder / "nowhere"),
    "model folder missing, worker": lambda given: _worker(given, model=given.folder / "nowhere"),
    "model folder without tokenizer": lambda given: _scheduler(given, model=_only_config(given)),
    "config.json that is no JSON": lambda given: _worker(given, model=_no_config(given)),
    "unreadable file of the model": lambda given: _scheduler(
        given, model=_directory_in_place_of_a_file(given)
    ),
    "architecture that is not known": lambda given: _worker(
        given, model=_other_architecture(given)
    ),
    "no weights": lambda given: _worker(given, model=_only_config(given)),
    "missing shard": lambda given: _worker(given, model=_missing_shard(given)),
    "missing tensor": lambda given: _worker(
        given, model=_with_weights(given, lambda tensors: tensors.pop(Q_PROJ))
    ),
    "damaged weights": lambda given: _worker(given, model=_damaged_weights(given)),
    "weights of another shape": lambda given: _worker(
        given,
        model=_with_weights(given, lambda tensors: tensors.update({Q_PROJ: torch.ones(1, 1)})),
    ),
    "device that is not there": lambda given: _worker(given, "--device=cuda:7"),
    "host memory that is not there": lambda given: _worker(given, "--hicache-size=1e6"),
    "one file of keys for users and operators": lambda given: _scheduler(
        given, "--api-key-file=keys", "--admin-api-key-file=keys"
    ),
    "cache secret unreadable": lambda given: _scheduler(
        given, f"--cache-secret-file={given.folder / 'gone'}"
    ),
    "cache secret too short": lambda given: _scheduler(given, _short_secret(given)),
    "latency file unreadable": lambda given: _scheduler(
        given, f"--latency-model={given.folder / 'gone'}"
    ),
    "latency file of another model": lambda given: _scheduler(given, _other_latency(given)),
    "Redis URL with half a bracket": lambda _given: _hicache("--redis-url=redis://me:secret@[::1"),
    "Redis URL that is none": lambda _given: _hicache("--redis-url=http://h:1"),
}
REFUSED = f"scheduler {ANY}: this worker is refused: "
"""How rows begin whose words are the registry's."""
OTHERS: Mapping[str, Mapping[str, object]] = {
    "worker with another protocol": {"protocol_version": 99},
    "worker of another model": {"model_layers": 5},
    "worker with less than a page": {"kv_capacity_tokens": 8},
    "workers of two element types": {"dtype": "bfloat16"},
    "workers of two transports": {"transport": "grpc"},
    "workers of two configs": {"config_digest": b"other"},
    "workers of two weights": {"layers": LayerRange(first=0, last=2), "layer_digests": (b"x",) * 2},
    "layers that overlap": {"layers": LayerRange(first=1, last=4), "layer_digests": (b"x",) * 3},
}


def _rows() -> dict[str, str]:
    """Return what the document says of each case."""
    table = DOCUMENT.read_text(encoding="utf-8").partition("## It goes on")[0]
    return dict(re.findall(r"^\| ([^|]+) \| `([^`]+)` \|", table, re.MULTILINE))


@pytest.fixture
def given(tiny: Path, tmp_path: Path) -> Iterator[Given]:
    """Take a port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield Given(model=tiny, folder=tmp_path, port=taken.getsockname()[1])


@pytest.mark.parametrize("case", CASES)
def test_a_service_says_why_it_does_not_start(given: Given, case: str) -> None:
    """One line with the value, the cause and the remedy, as documented; no traceback."""
    command = CASES[case](given)
    environ = dict([command[0].split("=", 1)]) if "=" in command[0] else {}
    command = command[len(environ) :]
    status, line = refusal(*command, environ=environ)
    assert status == 2
    said = re.escape(_rows()[case]).replace(ANY, ".*")
    assert re.fullmatch(f"{command[0]}: {said}", line), line


@pytest.mark.parametrize("case", OTHERS)
def test_a_scheduler_says_why_it_refuses_a_worker(case: str) -> None:
    """What services must have in common; each difference is named."""
    registry = Registry(
        model_layers=4,
        page_tokens=16,
        new_token=lambda: bytes(16),
        patience=Patience(takeover_s=1.5, announced_s=30.0),
    )
    first = WorkerHello(
        worker_id="first",
        protocol_version=PROTOCOL_VERSION,
        layers=LayerRange(first=0, last=2),
        model_layers=4,
        layer_digests=(b"0", b"1"),
        embedding_digest=b"e",
        head_digest=b"",
        config_digest=b"c",
        dtype="float32",
        hidden_size=8,
        kv_bytes_per_token=32,
        kv_capacity_tokens=1024,
        data_address="127.0.0.1:1",
        transport="ucx",
        device="cpu",
    )
    registry.attach(first, 0.0)
    second = dataclasses.replace(
        first, worker_id="second", layers=LayerRange(first=2, last=4), layer_digests=(b"2", b"3")
    )
    registry.check(second)
    changes: dict[str, Any] = dict(OTHERS[case])
    with pytest.raises(Refused) as refused:
        registry.check(dataclasses.replace(second, **changes))
    said = re.escape(_rows()[case].removeprefix(REFUSED)).replace(ANY, ".*")
    assert re.fullmatch(said, str(refused.value)), refused.value


def test_every_documented_case_is_tested() -> None:
    """A row that nothing holds would be wrong one day."""
    assert {*CASES, *OTHERS} == _rows().keys()


@pytest.mark.parametrize(
    ("case", "answer"),
    [
        ("Redis not there", None),
        ("Redis with another password", b"-WRONGPASS invalid username-password pair\r\n"),
        ("Redis too old", b"$21\r\nredis_version:5.0.7\r\n\r\n"),
        ("a server that is not Redis", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ],
)
async def test_hicache_starts_without_redis_and_says_why(case: str, answer: bytes | None) -> None:
    """The cache is no reason for requests to wait, but somebody must learn what is wrong."""
    async with _answering(answer) as port:
        settings = HiCacheSettings(
            port=0, http_port=0, redis_url=(f"redis://:pass@127.0.0.1:{port}",)
        )
        async with running(settings, ping_s=0.05) as address, channel(address) as to_hicache:
            stub = hicache_pb2_grpc.HiCacheStub(to_hicache)
            fault = ""
            async with asyncio.timeout(10):
                while not fault or "not asked" in fault:
                    fault = (await stub.GetStats(hicache_pb2.GetStatsRequest())).redis_fault
                    await asyncio.sleep(0.02)
    assert "pass@" not in fault
    table = DOCUMENT.read_text(encoding="utf-8").partition("## It goes on")[2]
    (words,) = re.findall(rf"^\| {case} \|[^`]*`(Redis [^`]+)`", table, re.MULTILINE)
    assert words.replace(ANY, str(port)) in fault


@contextlib.asynccontextmanager
async def _answering(answer: bytes | None) -> AsyncIterator[int]:
    """Serve the same answer to every command while inside; without one nobody listens."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answer is not None and (data := await reader.read(1 << 16)):
            num_commands = sum(line.startswith(b"*") for line in data.split(b"\r\n"))
            setting = data.count(b"SETINFO") + data.count(b"SELECT")
            setting += 0 if answer.startswith(b"-") else data.count(b"AUTH")
            writer.write(b"+OK\r\n" * setting + answer * (num_commands - setting))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if answer is None:
        server.close()
    yield port
    server.close()
