"""`chunkmesh tune` on a mesh of scripted stages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner, Result

from chunkmesh.v1 import generation_pb2 as pb
from scheduler.tuning.command import app
from tests.bytes_tokenizer import write_bytes_folder
from tests.fake_generation import FakeGeneration
from tests.mesh import mesh
from tests.scripted_stage import Script, scripted_stages


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


async def test_the_largest_chunks_win_where_each_costs_the_same(tmp_path: Path) -> None:
    """True runs: 512 tokens in chunks of every size, by the request's own word."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})
    stages = scripted_stages(2, Script(prefill_delay_s=0.03))
    async with mesh(folder, stages, chunked_prefill_size=256) as running:
        words = ("--server", str(running.address), "--tokens", "512", "--budget", "60", "--json")
        result = await asyncio.to_thread(_run, *words)
        text = await asyncio.to_thread(_run, *words[:-3], "--budget", "1")
        await running.at_rest()
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])  # the mesh in this process logs there too
    assert found["winner"] in {"fixed 256", "as it runs (fixed)"}
    assert ["--chunk-strategy fixed", "--chunked-prefill-size 256"] == found["scheduler_flags"]
    num_chunks = {each["name"]: each["num_chunks"] for each in found["measured"]}
    assert {"as it runs (fixed)": 2, "fixed 64": 8, "fixed 128": 4, "fixed 256": 2} == {
        name: number for name, number in num_chunks.items() if name != "fixed 192"
    }
    assert not found["is_cut_short"]
    assert text.exit_code == 0, text.stderr
    assert "chunkmesh-scheduler --chunk-strategy fixed --chunked-prefill-size" in text.stdout
    assert "512 tokens, measured" in text.stdout
    assert "a longer --budget tells more" in text.stdout


async def test_a_busy_mesh_is_refused(tmp_path: Path) -> None:
    """Others' work would be measured too."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    stages = scripted_stages(1, Script(delay_s=0.05))
    async with mesh(folder, stages) as running:
        call = running.stub.Generate(
            pb.GenerateRequest(
                text="x", sampling_params=pb.SamplingParams(max_new_tokens=500, ignore_eos=True)
            )
        )
        reading = asyncio.ensure_future(call.read())
        await asyncio.to_thread(stages[0].wait_for, 1)
        result = await asyncio.to_thread(_run, "--server", str(running.address), "--tokens", "64")
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await running.at_rest()
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1 requests run or wait" in result.stderr


async def test_prompts_beyond_the_context_are_refused(tmp_path: Path) -> None:
    """Found before anything runs."""
    folder = write_bytes_folder(
        tmp_path / "model", config={"num_hidden_layers": 1, "max_position_embeddings": 1000}
    )
    async with mesh(folder, scripted_stages(1, Script())) as running:
        address = str(running.address)
        result = await asyncio.to_thread(_run, "--server", address, "--tokens", "1K")
        assert result.exit_code == 2
        assert "the context holds 1000" in result.stderr


def test_help_names_the_flags() -> None:
    """The first thing that one tries."""
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    for flag in ("--server", "--tokens", "--budget", "--json"):
        assert flag in result.stdout


def test_a_wrong_call_is_a_usage_error() -> None:
    """Usage errors end with 2, as everywhere."""
    for words in (["--tokens", "x"], ["--tokens", "1K,2K"], ["--budget", "0"], ["--server", "no"]):
        assert _run(*words).exit_code == 2, words


def test_an_unreachable_server_is_named_with_a_remedy() -> None:
    """The commonest failure of a newcomer."""
    result = _run("--server", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "no answer from 127.0.0.1:1" in result.stderr


def test_a_scheduler_that_does_not_do_as_asked_is_found_out() -> None:
    """An older one leaves chunk_tokens unread; its figures would all be of the same chunks."""
    server = FakeGeneration()
    try:
        result = _run("--server", server.address, "--tokens", "100")
    finally:
        server.close()
    assert result.exit_code == 1
    assert result.stderr.startswith("chunkmesh: ")
