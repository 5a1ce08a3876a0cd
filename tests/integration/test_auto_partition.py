"""`chunkmesh up --partition auto`: a mesh of real services over the best split."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from chunkmesh.cli.exits import parse_server
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.ports import bind_unused
from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.random_ids import make_prompt
from tests.reference import Reference
from tests.tiny_models import make_tiny

_TIMEOUT_S = 100
_NEW_TOKENS = 6


def _ask(server: str, prompt: list[int]) -> list[int]:
    """Return what a mesh answers."""
    request = pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=_NEW_TOKENS, ignore_eos=True
        ),
    )
    with GenerationClient(parse_server(server)) as client:
        *_, last = client.generate(request)
    return list(last.complete.output_ids)


def _free_ports() -> list[str]:
    """Return flags with ports of our own: other meshes run on this machine."""
    flags = ("--port", "--internal-port")
    with ExitStack() as held:
        bound = [held.enter_context(bind_unused("127.0.0.1")) for _ in flags]
        ports = [str(each.getsockname()[1]) for each in bound]
    return list(itertools.chain(*zip(flags, ports, strict=True)))


def test_a_mesh_stands_on_an_uneven_split(tmp_path: Path) -> None:
    """Three light layers go together, the wide one alone; the answer is transformers'."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_bytes_folder(folder)
    make_tiny(folder, "Qwen3Moe", intermediate_size=16_384, mlp_only_layers=[3])
    prompt = make_prompt(50, seed=3)
    command = [sys.executable, "-m", "chunkmesh.cli", "up", "--json", "--no-cache", *_free_ports()]
    with subprocess.Popen(
        [*command, "--model-path", str(folder), "--partition", "auto", "--transport", "grpc"],
        env={**os.environ, "CHUNKMESH_PROFILE": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=_TIMEOUT_S)
            endpoints = json.loads(line)
            layers = [worker["layers"] for worker in endpoints["workers"]]
            output_ids = _ask(endpoints["scheduler"], prompt)
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert ["0-2", "3-3"] == layers
    assert "layers split" in errors
    assert "sooner than with the even split" in errors
    assert Reference(folder).generate(prompt, _NEW_TOKENS) == output_ids
