"""The mesh against transformers (float32, SDPA, two threads) in one run, on the same two cores."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import torch

from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from tests.bench.measure import cell, interleave, pair_ratios, table
from tests.bench.mesh_client import complete, itl_s, new_prompt, output_rate, ttft_s
from tests.reference import Reference

PROMPT_TOKENS = 2048
NEW_TOKENS = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a mesh uses the two cores."""

    title: str
    num_stages: int
    threads: int
    """Of each stage."""
    chunk_tokens: int


LAYOUTS = (
    Layout(title="one stage of two threads", num_stages=1, threads=2, chunk_tokens=512),
    Layout(title="two stages of one thread", num_stages=2, threads=1, chunk_tokens=128),
)


def compare(model_path: Path, *, rounds: int) -> str:
    """Compare prefill rate, decode rate at batch 1 and four at once, and memory."""
    torch.set_num_threads(2)
    reference = Reference(model_path, attention="sdpa")
    reference.generate(new_prompt(256), 8)
    return "\n".join(_table(layout, reference, model_path, rounds=rounds) for layout in LAYOUTS)


def _table(layout: Layout, reference: Reference, model_path: Path, *, rounds: int) -> str:
    """Measure one layout in pairs with the reference."""
    options = MeshOptions(
        model_path=model_path,
        num_stages=layout.num_stages,
        threads=layout.threads,
        chunked_prefill_tokens=layout.chunk_tokens,
        cache=False,
        scheduler_flags=("--chunk-strategy=fixed",),
    )
    with LocalMesh(options) as mesh:
        complete(mesh, new_prompt(256), 8)
        prefill = interleave(
            rounds,
            {
                "transformers": lambda: PROMPT_TOKENS / _first_token_s(reference),
                "mesh": lambda: PROMPT_TOKENS / ttft_s(mesh, PROMPT_TOKENS),
            },
            unit="tok/s",
        )
        decode = interleave(
            rounds,
            {
                "transformers": lambda: _decode_rate(reference),
                "mesh": lambda: 1 / itl_s(complete(mesh, new_prompt(512), NEW_TOKENS)),
            },
            unit="tok/s",
        )
        four = interleave(
            rounds,
            {
                "mesh": lambda: output_rate(
                    mesh, num_requests=4, prompt_tokens=512, new_tokens=NEW_TOKENS
                )
            },
            unit="tok/s",
        )["mesh"]
        resident_mb = sum(_resident_mb(state.pid) for state in mesh.processes())
    rows = []
    for what, samples in ((f"prefill of {PROMPT_TOKENS}", prefill), ("decode, batch 1", decode)):
        ratio = pair_ratios(samples["mesh"], samples["transformers"])
        best = f"{ratio.best(least=False):.2f}"
        measured = [cell(samples["transformers"]), cell(samples["mesh"]), cell(ratio)]
        rows.append([what, *measured, best, ">= 1.0"])
    gain = four.median / decode["transformers"].median
    rows.append(["decode, 4 at once against batch 1", "", cell(four), f"{gain:.2f}", "", ">= 1.5"])
    rows.append(["resident memory of all processes", "", f"{resident_mb} MB", "", "", "<= 2500"])
    return table(
        f"{layout.title.capitalize()}, chunk {layout.chunk_tokens}, "
        "against transformers (float32, SDPA, 2 threads)",
        ["what", "transformers", "mesh", "ratio", "best pair", "aim"],
        rows,
    )


def _first_token_s(reference: Reference) -> float:
    prompt = new_prompt(PROMPT_TOKENS)
    begin = time.perf_counter()
    reference.generate(prompt, 1)
    return time.perf_counter() - begin


def _decode_rate(reference: Reference) -> float:
    """Return tokens per second behind the first one."""
    prompt = new_prompt(512)
    begin = time.perf_counter()
    reference.generate(prompt, 1)
    first = time.perf_counter()
    reference.generate(prompt, NEW_TOKENS)
    return (NEW_TOKENS - 1) / (time.perf_counter() - first - (first - begin))


def _resident_mb(pid: int) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) // 1024
