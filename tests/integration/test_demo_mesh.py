"""A mesh of real processes on the real demo model, over UCX and a real Valkey, as users run it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import tokenizers
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.demo_model import ensure_demo_model
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.prompts import PROMPTS, long_prompt
from tests.reference import Reference

NEW_TOKENS = 12
SHORT_PROMPTS = PROMPTS[:7]


@pytest.fixture(scope="module")
def model() -> Path:
    """Make the demo model if it is not there."""
    return ensure_demo_model()


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[list[int]]:
    """Encode short prompts and one of over 2000 tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = [*SHORT_PROMPTS, long_prompt(2200)]
    encoded = [list(tokenizer.encode(text).ids) for text in texts]
    assert len(encoded[-1]) > 2000
    return encoded


@pytest.fixture(scope="module")
def expected(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Ask transformers; eager attention over the long prompt would take three times as long."""
    reference = Reference(model, attention="sdpa")
    return [reference.generate(prompt, NEW_TOKENS) for prompt in prompts]


def run_mesh(model: Path, num_stages: int, chunk_tokens: int) -> LocalMesh:
    """Describe a mesh of one-thread stages with a cache; fixed chunks need no profile."""
    return LocalMesh(
        MeshOptions(
            model_path=model,
            num_stages=num_stages,
            chunked_prefill_tokens=chunk_tokens,
            scheduler_flags=("--chunk-strategy=fixed",),
            worker_flags=("--profile=off",),
        )
    )


@pytest.fixture(scope="module")
def two_stages(model: Path) -> Iterator[LocalMesh]:
    """Run a mesh of two stages for several tests."""
    with run_mesh(model, 2, 100) as mesh:
        yield mesh


def ask(mesh: LocalMesh, prompt: Sequence[int]) -> pb.GenerateComplete:
    """Run a greedy request of exactly NEW_TOKENS."""
    request = pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ),
    )
    with GenerationClient(HostPort.parse(mesh.scheduler_address)) as client:
        *_, last = client.generate(request)
    return last.complete


def ask_until_cached(mesh: LocalMesh, prompt: Sequence[int]) -> pb.GenerateComplete:
    """Repeat a request until all its whole pages come from the cache."""
    whole = (len(prompt) - 1) // 64 * 64
    deadline_s = time.monotonic() + 120
    while True:
        answer = ask(mesh, prompt)
        if answer.cached_tokens == whole:
            return answer
        assert time.monotonic() < deadline_s, f"{answer.cached_tokens} of {whole} cached"


def check_exact(mesh: LocalMesh, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """Compare ids with transformers', cold and from the cache."""
    for prompt, ids in zip(prompts, expected, strict=True):
        cold = ask(mesh, prompt)
        assert (ids, 0) == (list(cold.output_ids), cold.cached_tokens)
        assert ids == list(ask_until_cached(mesh, prompt).output_ids)


@pytest.mark.timeout(900)
def test_ids_are_those_of_transformers(
    two_stages: LocalMesh, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Cold and cached, short and long: the mesh is the model."""
    check_exact(two_stages, prompts, expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("num_stages", "chunk_tokens"), list(itertools.product((1, 2, 3), (64, 100, 512)))
)
def test_ids_are_those_of_transformers_on_any_split_and_cut(
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    num_stages: int,
    chunk_tokens: int,
) -> None:
    """No split and no chunk size may change a token."""
    with run_mesh(model, num_stages, chunk_tokens) as mesh:
        check_exact(mesh, prompts, expected)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment to its end."""
    program = str(Path(sys.executable).parent / arguments[0])
    return subprocess.run(
        [program, *arguments[1:]], capture_output=True, text=True, timeout=120, check=False
    )


def test_generate_prints_one_json_object_for_scripts(
    two_stages: LocalMesh, tmp_path: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Scripts rely on these keys, and on ids in a file."""
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(prompts[0]))
    done = command(
        "chunkmesh", "generate", f"--input-ids={file}", f"--server={two_stages.scheduler_address}",
        "--temperature=0", f"--max-new-tokens={NEW_TOKENS}", "--ignore-eos", "--json",
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    answer = json.loads(done.stdout)
    keys = (
        "request_id index text output_ids prompt_tokens cached_tokens completion_tokens "
        "finish_reason matched_stop matched_token_id ttft_ms e2e_ms chunks num_preemptions"
    )
    assert set(keys.split()) == set(answer)
    assert expected[0] == answer["output_ids"]
    assert (len(prompts[0]), NEW_TOKENS) == (answer["prompt_tokens"], answer["completion_tokens"])
    assert "length" == answer["finish_reason"]
    assert 0 < answer["ttft_ms"] <= answer["e2e_ms"]


def test_chat_uses_the_models_template(two_stages: LocalMesh) -> None:
    """A chat must be rendered as the model was trained, and end at its end token."""
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="What is 2+2? Be brief.")])
    request = pb.GenerateRequest(
        chat=chat, sampling_params=pb.SamplingParams(temperature=0, max_new_tokens=64)
    )
    with GenerationClient(HostPort.parse(two_stages.scheduler_address)) as client:
        *_, last = client.generate(request)
    assert pb.FINISH_REASON_STOP == last.complete.finish_reason
    assert 2 == last.complete.matched_token_id
    assert "4" in last.complete.text
    assert "<|im_end|>" not in last.complete.text


def test_hicache_admin_sees_and_clears_what_requests_stored(
    two_stages: LocalMesh, prompts: list[list[int]], tmp_path: Path
) -> None:
    """stats, lookup and clear work on a live mesh; what its devices hold is the mesh's own."""
    ask_until_cached(two_stages, prompts[-1])
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(prompts[-1]))
    hicache = two_stages.endpoints.hicache
    assert hicache is not None
    admin = ("hicache-admin", f"--hicache={hicache.grpc}")
    lookup = (
        *admin, "lookup", f"--tokens={file}", f"--scheduler={two_stages.scheduler_address}",
        "--json",
    )  # fmt: skip
    found = command(*lookup)
    assert 0 == found.returncode, found.stderr
    assert len(prompts[-1]) // 64 * 64 == json.loads(found.stdout)["cached_tokens"]
    stats = json.loads(command(*admin, "stats", "--json").stdout)
    assert stats["num_pages"] >= len(prompts[-1]) // 64
    cleared = command(*admin, "clear", "--yes", "--json")
    assert (0, stats["num_pages"]) == (
        cleared.returncode,
        json.loads(cleared.stdout)["num_pages"],
    )
    assert 3 == command(*lookup).returncode
    assert len(prompts[-1]) // 64 * 64 == ask(two_stages, prompts[-1]).cached_tokens
    with grpc.insecure_channel(two_stages.scheduler_address) as channel:
        generation_pb2_grpc.GenerationStub(channel).FlushCache(pb.FlushCacheRequest())
    assert 0 == ask(two_stages, prompts[-1][:300]).cached_tokens


def test_reflection_lists_the_services(two_stages: LocalMesh) -> None:
    """Tools such as grpcurl must find the contract without proto files."""
    with grpc.insecure_channel(two_stages.scheduler_address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        names = set(database.get_services())
        file = database.FindFileContainingSymbol("chunkmesh.v1.GenerateRequest")
    assert {"chunkmesh.v1.Generation", "grpc.health.v1.Health"} <= names
    assert "chunkmesh/v1/generation.proto" == file.name


@pytest.mark.skipif(
    not (Path(sys.executable).parent / "grpcurl").exists(), reason="no grpcurl for this machine"
)
def test_grpcurl_can_generate(two_stages: LocalMesh) -> None:
    """The tool that people reach for first."""
    request = {
        "text": "Hello",
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
    }
    done = command(
        "grpcurl", "-plaintext", "-d", json.dumps(request), two_stages.scheduler_address,
        "chunkmesh.v1.Generation/Generate",
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    assert 4 == json.loads(done.stdout)["complete"]["completion_tokens"]


def test_the_demo_shows_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer's first command: figures, links, both timelines, a picture, nothing left."""
    monkeypatch.setenv("CHUNKMESH_PROFILE_TIMEOUT", "4")
    picture = tmp_path / "demo.png"
    done = command("chunkmesh", "demo", "--prompt-tokens=400", f"--picture={picture}")
    assert 0 == done.returncode, done.stderr
    for words in ("prompt", "cached", "chunks", "TTFT", "tok/s", "link stage 0 -> 1: transport"):
        assert words in done.stdout
    assert 1 == done.stdout.count("computing during prefill: stage 0"), "a lone chunk has no share"
    assert 2 == done.stdout.count("stage 0: wait / compute / ")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_health_and_side_doors_say_ready(two_stages: LocalMesh) -> None:
    """Probes of every service agree that the mesh serves."""
    with grpc.insecure_channel(two_stages.scheduler_address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "chunkmesh.v1.Generation"):
            request = health_pb2.HealthCheckRequest(service=name)
            assert health_pb2.HealthCheckResponse.SERVING == stub.Check(request).status
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert grpc.StatusCode.NOT_FOUND is unknown.value.code()
    endpoints = two_stages.endpoints
    doors = [endpoints.side_door, *(worker.side_door for worker in endpoints.workers)]
    for door in doors:
        for path in ("live", "ready"):
            with urllib.request.urlopen(f"http://{door}/{path}", timeout=5) as answer:
                assert 200 == answer.status


def test_the_links_report_their_transport(two_stages: LocalMesh) -> None:
    """What the endpoint really uses is told, not what was asked for."""
    with GenerationClient(HostPort.parse(two_stages.scheduler_address)) as client:
        info = client.server_info()
    first, last = info.workers
    assert (0, 1) == (first.stage_index, last.stage_index)
    assert first.outbound.transport in {"tcp", "sysv", "posix", "cma"}
    assert first.outbound.rtt_us > 0
    assert not last.HasField("outbound")
