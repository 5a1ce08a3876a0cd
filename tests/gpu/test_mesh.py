"""A whole mesh of processes on GPUs: scheduler, stage workers, links of UCX."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.narrow_models import make_narrow
from tests.random_ids import make_prompt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(280)]

_NEW_TOKENS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny Qwen3 whose heads the kernels take, with a tokenizer."""
    path = tmp_path_factory.mktemp("model")
    write_bytes_folder(path)
    changes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 128}
    make_narrow(path, "Qwen3", "bfloat16", **changes)
    return path


def options(folder: Path, devices: tuple[str, ...], quantization: str) -> MeshOptions:
    """Return a mesh of a stage for each device, without a prefix cache, with random weights."""
    weights = ("--load-format=dummy", f"--quantization={quantization}")
    return MeshOptions(
        model_path=folder,
        num_stages=len(devices),
        devices=devices,
        page_tokens=128,
        chunked_prefill_tokens=128,
        cache=False,
        scheduler_flags=("--chunk-strategy=fixed",),
        worker_flags=(*weights, "--profile=off", "--max-total-tokens=8192"),
        ready_timeout_s=200,
    )


def answers(mesh: LocalMesh) -> tuple[list[list[int]], pb.GetServerInfoResponse]:
    """Return the ids of some prompts, and what the mesh says of itself."""
    with GenerationClient(HostPort.parse(mesh.scheduler_address)) as client:
        ids = []
        for length in (5, 200, 700):
            request = pb.GenerateRequest(
                input_ids=pb.TokenIds(ids=make_prompt(length, seed=length)),
                sampling_params=pb.SamplingParams(
                    temperature=0, max_new_tokens=_NEW_TOKENS, ignore_eos=True
                ),
            )
            *_, last = client.generate(request)
            ids.append(list(last.complete.output_ids))
        return ids, client.server_info()


@pytest.mark.parametrize("quantization", ["auto", "fp8"])
def test_two_stages_answer_as_one(folder: Path, gpu: torch.device, quantization: str) -> None:
    """Activations go from process to process and from GPU to GPU, and change nothing."""
    second = f"cuda:{min(1, torch.cuda.device_count() - 1)}"
    with LocalMesh(options(folder, ("cuda:0",), quantization)) as mesh:
        expected, alone = answers(mesh)
    with LocalMesh(options(folder, ("cuda:0", second), quantization)) as mesh:
        actual, info = answers(mesh)
    assert expected == actual
    assert all(len(ids) == _NEW_TOKENS for ids in actual)
    assert {torch.cuda.get_device_name(gpu)} == {worker.device for worker in info.workers}
    names = {each.operation: each.name for each in alone.workers[0].backends}
    assert set(names) >= {"prefill attention", "decode attention", "matrix products"}
    assert names["decode launches"] == "CUDA graphs up to 64 rows"
    assert ("weights" in names) == (quantization == "fp8")
    transports = {worker.outbound.transport for worker in info.workers[:1]}
    assert any("cuda_ipc" in transport for transport in transports)
