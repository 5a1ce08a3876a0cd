"""Two one-thread stages against transformers (float32, SDPA, two threads) in one run."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from tests.bench.measure import cell, interleave, pair_ratios, table
from tests.bench.mesh_client import complete, itl_s, new_prompt, output_rate, ttft_s
from tests.reference import Reference

CHUNK_TOKENS = 128


def compare(model_path: Path, *, rounds: int, num_tokens: int = 2048, new_tokens: int = 32) -> str:
    """Compare prefill rate, decode rate at batch 1 and four at once, and memory."""
    torch.set_num_threads(2)
    reference = Reference(model_path, attention="sdpa")
    options = MeshOptions(model_path=model_path, chunked_prefill_tokens=CHUNK_TOKENS, cache=False)
    with LocalMesh(options) as mesh:
        complete(mesh, new_prompt(256), 8)
        reference.generate(new_prompt(256), 8)
        prefill = interleave(
            rounds,
            {
                "transformers": lambda: num_tokens / _first_token_s(reference, num_tokens),
                "mesh": lambda: num_tokens / ttft_s(mesh, num_tokens),
            },
            unit="tok/s",
        )
        decode = interleave(
            rounds,
            {
                "transformers": lambda: _decode_rate(reference, new_tokens),
                "mesh": lambda: 1 / itl_s(complete(mesh, new_prompt(512), new_tokens)),
            },
            unit="tok/s",
        )
        four = interleave(
            rounds,
            {
                "mesh, 4 at once": lambda: output_rate(
                    mesh, num_requests=4, prompt_tokens=512, new_tokens=new_tokens
                )
            },
            unit="tok/s",
        )["mesh, 4 at once"]
        resident_mb = sum(_resident_mb(state.pid) for state in mesh.processes())
    rows = []
    for what, samples in ((f"prefill of {num_tokens}", prefill), ("decode, batch 1", decode)):
        ratio = pair_ratios(samples["mesh"], samples["transformers"])
        rows.append(
            [
                what,
                cell(samples["transformers"]),
                cell(samples["mesh"]),
                cell(ratio),
                f"{ratio.best(least=False):.2f}",
                ">= 1.0",
            ]
        )
    gain = four.median / decode["transformers"].median
    rows.append(["decode, 4 at once against batch 1", "", cell(four), f"{gain:.2f}", "", ">= 1.5"])
    rows.append(["resident memory of all processes", "", f"{resident_mb} MB", "", "", "<= 2500"])
    return table(
        "Two one-thread stages against transformers (float32, SDPA, 2 threads)",
        ["what", "transformers", "mesh", "ratio", "best pair", "aim"],
        rows,
    )


def _first_token_s(reference: Reference, num_tokens: int) -> float:
    prompt = new_prompt(num_tokens)
    begin = time.perf_counter()
    reference.generate(prompt, 1)
    return time.perf_counter() - begin


def _decode_rate(reference: Reference, new_tokens: int) -> float:
    """Return tokens per second behind the first one."""
    prompt = new_prompt(512)
    begin = time.perf_counter()
    reference.generate(prompt, 1)
    first = time.perf_counter()
    reference.generate(prompt, new_tokens)
    return (new_tokens - 1) / (time.perf_counter() - first - (first - begin))


def _resident_mb(pid: int) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) // 1024
