"""O28 (e): all parts on [::1], each with a port of its own, wired by addresses in brackets."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc as pb_grpc
from tests.forked_services import Services
from tests.free_port import free_port
from tests.valkey import Valkey

HOST = "--host=::1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["ucx", pytest.param("grpc", marks=pytest.mark.slow)])
def test_a_mesh_on_ipv6(services: Services, tiny: Path, valkey: Valkey, transport: str) -> None:
    """It forms, links its stages, finds its cache and answers."""
    users, internal, cache, data, http = (free_port("::1") for _ in range(5))
    ports = ("--port=0", "--http-port=0", f"--scheduler=[::1]:{internal}", "--profile=off")
    store = f"--redis-url={valkey.unix_url}"
    worker = ("stage-worker", f"--model-path={tiny}", HOST, *ports, store)
    with contextlib.ExitStack() as stack:
        for command in (
            ("hicache-server", HOST, f"--port={cache}", "--http-port=0", store),
            ("chunkmesh-scheduler", f"--model-path={tiny}", HOST, f"--port={users}",
             f"--internal-port={internal}", f"--http-port={http}", f"--hicache-url=[::1]:{cache}"),
            (*worker, "--layers=0-1", "--data-port=0", f"--peer=[::1]:{data}",
             f"--transport={transport}"),
            (*worker, "--layers=2-3", f"--data-port={data}", f"--transport={transport}"),
        ):  # fmt: skip
            stack.enter_context(services.started(*command))
        _wait_until_ready(http)
        with grpc.insecure_channel(f"[::1]:{users}") as channel:
            stub: Any = pb_grpc.GenerationStub(channel)
            params = pb.SamplingParams(max_new_tokens=3, ignore_eos=True)
            request = pb.GenerateRequest(text="hello", sampling_params=params)
            *_, last = stub.Generate(request, timeout=60)
            info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=60)
    assert last.complete.completion_tokens == 3
    assert f"[::1]:{data}" in {worker.data_address for worker in info.workers}
    assert info.cache_fault == ""


def _wait_until_ready(http: int) -> None:
    deadline_s = time.monotonic() + 150
    while True:
        assert time.monotonic() < deadline_s
        try:
            with urllib.request.urlopen(f"http://[::1]:{http}/ready", timeout=5):
                return
        except OSError:  # not there, or 503
            time.sleep(0.1)
