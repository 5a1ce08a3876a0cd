"""`chunkmesh bench serve` on a whole mesh of scripted stages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.bytes_tokenizer import write_bytes_folder
from tests.cli_run import run_cli
from tests.mesh import PAGE_TOKENS, Mesh, mesh
from tests.scripted_stage import Script, scripted_stages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model of two layers and 4096 tokens of context."""
    return write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})


async def _serve(running: Mesh, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    """Measure, and return the exit status, the runs and what was said beside."""
    command = ("bench", "serve", "--server", str(running.address), "--json", "--save-detailed")
    result = await asyncio.to_thread(run_cli, *command, *words)
    await running.at_rest()
    lines = result.stdout.splitlines()  # the mesh in this process logs there too
    found = next(line for line in reversed(lines) if line.startswith('{"kind"'))
    return result.exit_code, json.loads(found)["runs"], result.stderr


async def test_random_prompts_run_to_their_exact_ends(folder: Path) -> None:
    """Of 8 prompts every token in and out is there, and none was cached, in both runs."""
    words = ("--num-prompts", "8", "--random-input-len", "100", "--random-output-len", "6")
    async with mesh(folder, scripted_stages(2, Script())) as running:
        status, runs, _ = await _serve(running, *words, "--max-concurrency", "3", "--num-runs", "2")
    assert (0, 2) == (status, len(runs))
    for run in runs:
        assert {("OK", 100, 6, 0)} == {
            tuple(record[name] for name in ("status", "input_tokens", "output_tokens",
                                            "cached_tokens"))
            for record in run["records"]
        }  # fmt: skip
        assert (8, 800, 48) == tuple(
            run["figures"][name]
            for name in ("completed", "total_input_tokens", "total_output_tokens")
        )
        for record in run["records"]:
            assert record["server_ttft_ms"] <= 1000 * (record["arrivals_s"][0] - record["sent_s"])


async def test_prefixes_are_shared_within_a_run_only(folder: Path) -> None:
    """One at a time, each prompt but the first of its group finds the group's pages: 6 of 8."""
    words = ("--dataset-name", "shared-prefix", "--num-prompts", "8", "--gsp-num-groups", "2",
             "--gsp-system-prompt-len", str(4 * PAGE_TOKENS), "--gsp-question-len", "5",
             "--gsp-output-len", "2", "--max-concurrency", "1", "--num-runs", "2")  # fmt: skip
    async with mesh(folder, scripted_stages(2, Script())) as running:
        status, runs, _ = await _serve(running, *words)
    assert status == 0
    assert [6 * 4 * PAGE_TOKENS] * 2 == [run["figures"]["total_cached_tokens"] for run in runs]


async def test_a_refused_prompt_is_a_failure_beside_the_others(
    folder: Path, tmp_path: Path
) -> None:
    """A text's length is known to the mesh alone."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": text, "output_len": 4} for text in ("short", "x" * 5000, "also short")]
    path.write_text("\n".join(map(json.dumps, rows)))
    words = ("--dataset-name", "file", "--dataset-path", str(path), "--num-warmups", "0")
    async with mesh(folder, scripted_stages(2, Script())) as running:
        status, (run,), said = await _serve(running, *words)
        allowed, *_ = await _serve(running, *words, "--allow-failures")
    assert (1, 0) == (status, allowed)
    assert ["OK", "INVALID_ARGUMENT", "OK"] == [record["status"] for record in run["records"]]
    assert (2, 1) == (run["figures"]["completed"], run["figures"]["failed"])
    assert "1 failed with INVALID_ARGUMENT" in said


async def test_a_run_that_is_cut_short_leaves_the_mesh_at_rest(folder: Path) -> None:
    """Requests that nobody waits for must not go on."""
    words = ("--num-prompts", "4", "--random-input-len", "50", "--random-output-len", "1000",
             "--num-warmups", "0", "--duration", "1")  # fmt: skip
    async with mesh(folder, scripted_stages(2, Script(decode_delay_s=0.05))) as running:
        status, (run,), _ = await _serve(running, *words)
    assert (0, "duration") == (status, run["end"])
    assert run["figures"]["unfinished"] == 4
