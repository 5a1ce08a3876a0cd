"""Two one-thread stages against one: prefill, decode, overlap, the mesh's own cost."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path

from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from tests.bench.measure import cell, interleave, pair_ratios, table
from tests.bench.mesh_client import complete, itl_s, new_prompt, output_rate, ttft_s

CHUNKS = (64, 128, 256, 512)


@contextlib.contextmanager
def meshes(
    model_path: Path, chunk_tokens: int, *flags: str
) -> Iterator[tuple[LocalMesh, LocalMesh]]:
    """Run a mesh of one and a mesh of two one-thread stages side by side, warmed up."""
    one, two = (
        MeshOptions(
            model_path=model_path,
            num_stages=num_stages,
            chunked_prefill_tokens=chunk_tokens,
            cache=False,
            scheduler_flags=("--chunk-strategy=fixed", *flags),
        )
        for num_stages in (1, 2)
    )
    with LocalMesh(one) as single, LocalMesh(two) as double:
        for mesh in (single, double):
            complete(mesh, new_prompt(2 * chunk_tokens), 8)
        yield single, double


def prefill(model_path: Path, *, rounds: int, num_tokens: int = 3000) -> str:
    """Compare the time to the first token, for each chunk size."""
    rows = []
    for chunk_tokens in CHUNKS:
        with meshes(model_path, chunk_tokens) as (one, two):
            samples = interleave(
                rounds,
                {
                    "1 stage": lambda one=one: ttft_s(one, num_tokens),  # type: ignore[misc]
                    "2 stages": lambda two=two: ttft_s(two, num_tokens),  # type: ignore[misc]
                },
                unit="s",
            )
        ratio = pair_ratios(samples["1 stage"], samples["2 stages"])
        rows.append(
            [
                str(chunk_tokens),
                cell(samples["1 stage"]),
                cell(samples["2 stages"]),
                cell(ratio),
                f"{ratio.best(least=False):.2f}",
            ]
        )
    return table(
        f"Prefill of {num_tokens} tokens, one thread a stage (aim: >= 1.7 in the best pair)",
        ["chunk", "1 stage, TTFT", "2 stages, TTFT", "speed-up", "best pair"],
        rows,
    )


def decode(model_path: Path, *, rounds: int, new_tokens: int = 48) -> str:
    """Compare decode at batch 1, and four requests in two groups with four in one group."""
    with (
        meshes(model_path, 256) as (one, two),
        meshes(model_path, 256, "--decode-groups=1") as (
            _,
            grouped,
        ),
    ):
        single = interleave(
            rounds,
            {
                "1 stage": lambda: 1 / itl_s(complete(one, new_prompt(64), new_tokens)),
                "2 stages": lambda: 1 / itl_s(complete(two, new_prompt(64), new_tokens)),
            },
            unit="tok/s",
        )
        four = interleave(
            rounds,
            {
                "1 group": lambda: output_rate(
                    grouped, num_requests=4, prompt_tokens=64, new_tokens=new_tokens
                ),
                "2 groups": lambda: output_rate(
                    two, num_requests=4, prompt_tokens=64, new_tokens=new_tokens
                ),
            },
            unit="tok/s",
        )
    batch_one = pair_ratios(single["2 stages"], single["1 stage"])
    overlap = pair_ratios(four["2 groups"], four["1 group"])
    return table(
        "Decode after 64 tokens, one thread a stage",
        ["what", "base", "measured", "ratio", "best pair", "aim"],
        [
            [
                "batch 1: 2 stages against 1",
                cell(single["1 stage"]),
                cell(single["2 stages"]),
                cell(batch_one),
                f"{batch_one.best(least=False):.2f}",
                ">= 0.7",
            ],
            [
                "4 at once on 2 stages: 2 groups against 1",
                cell(four["1 group"]),
                cell(four["2 groups"]),
                cell(overlap),
                f"{overlap.best(least=False):.2f}",
                ">= 1.3",
            ],
        ],
    )


def overhead(model_path: Path, *, rounds: int, new_tokens: int = 64) -> str:
    """Measure what a decode step costs beside compute, for each stage that it crosses.

    Cost = (gap between two tokens - compute of all stages) / stages; the wire is in it.
    """
    rows = []
    with meshes(model_path, 256) as pair:
        for mesh, num_stages in zip(pair, (1, 2), strict=True):
            costs = [
                cost for _ in range(rounds) for cost in _step_costs_ms(mesh, num_stages, new_tokens)
            ]
            costs.sort()
            rows.append(
                [
                    str(num_stages),
                    f"{statistics.median(costs):.2f} ms",
                    f"{costs[len(costs) // 10]:.2f}-{costs[9 * len(costs) // 10]:.2f} ms",
                    str(len(costs)),
                ]
            )
    return table(
        "The mesh's own cost per microbatch and stage, wire included, decode at batch 1 (<= 3 ms)",
        ["stages", "median", "10 % to 90 %", "steps"],
        rows,
    )


def _step_costs_ms(mesh: LocalMesh, num_stages: int, new_tokens: int) -> list[float]:
    """Return the cost of each decode step of one request."""
    answer = complete(mesh, new_prompt(64), new_tokens, timeline=True)
    steps = [step for step in answer.timeline if step.start >= answer.prompt_tokens]
    costs = []
    for before, after in itertools.pairwise(steps):
        first = after.stages[0]
        gap_us = first.start_us - before.stages[0].start_us
        work_us = sum(stage.compute_us for stage in before.stages)
        costs.append((gap_us - work_us) / 1000 / num_stages)
    return costs
