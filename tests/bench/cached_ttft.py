"""Time to the first token of a prompt that was computed before: from devices, host memory, Redis.

What keeps pages off the devices is `--no-enable-prefix-caching`: an ended request leaves nothing
there, so that the second time finds what a prompt does whose device pages others have taken. Which
tier the tokens came from is counted by the scheduler and checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np

from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from tests.bench.cached_prompts import Tier, ask, forget_all, wait_stored
from tests.bench.measure import Sample, cell, pair_ratios, table
from tests.bench.mesh_client import new_prompt

NUM_TOKENS = 4000
PAGE_TOKENS = 64
_HIT_TOKENS = (NUM_TOKENS - 1) // PAGE_TOKENS * PAGE_TOKENS
_STORE_S = 60.0
_NOT_ON_DEVICES = ("--no-enable-prefix-caching", "--load-policy=wait_complete")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tier:
    """Where the second time finds the prompt."""

    name: str
    counted: Tier
    aim: str
    """Of cached / cold."""
    scheduler_flags: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()


_TIERS = (
    _Tier(name="device pages", counted="device", aim="<= 0.15"),
    _Tier(
        name="host pages",
        counted="host",
        aim="below Redis",
        scheduler_flags=_NOT_ON_DEVICES,
        worker_flags=("--hicache-size=1",),
    ),
    _Tier(
        name="Redis",
        counted="redis",
        aim="<= 0.35",
        scheduler_flags=_NOT_ON_DEVICES,
    ),
)


def cached_ttft(model_path: Path, *, rounds: int) -> str:
    """Compare the second time of new prompts with their first, in pairs; two stages."""
    cold: dict[str, list[float]] = {tier.name: [] for tier in _TIERS}
    cached: dict[str, list[float]] = {tier.name: [] for tier in _TIERS}
    with contextlib.ExitStack() as stack:
        meshes = [stack.enter_context(_mesh(model_path, tier)) for tier in _TIERS]
        for tier, mesh in zip(_TIERS, meshes, strict=True):
            _twice(mesh, tier)
        for _ in range(rounds):
            for tier, mesh in zip(_TIERS, meshes, strict=True):
                first_s, second_s = _twice(mesh, tier)
                cold[tier.name].append(first_s)
                cached[tier.name].append(second_s)
    rows = []
    for tier in _TIERS:
        first = Sample(name="cold", values=tuple(cold[tier.name]), unit="s")
        second = Sample(name=tier.name, values=tuple(cached[tier.name]), unit="s")
        rows.append(
            [tier.name, cell(first), cell(second), cell(pair_ratios(second, first)), tier.aim]
        )
    return table(
        f"Time to the first token of {NUM_TOKENS} tokens, {_HIT_TOKENS} of them cached; 2 stages",
        ["from", "cold", "cached", "cached / cold", "aim"],
        rows,
    )


def _mesh(model_path: Path, tier: _Tier) -> LocalMesh:
    """Return a mesh whose prompts are found in a tier the second time."""
    return LocalMesh(
        MeshOptions(
            model_path=model_path,
            num_stages=2,
            scheduler_flags=tier.scheduler_flags,
            worker_flags=tier.worker_flags,
        )
    )


def _twice(mesh: LocalMesh, tier: _Tier) -> tuple[float, float]:
    """Run a new prompt, and again once all of it is stored; return both times."""
    prompt = np.array(new_prompt(NUM_TOKENS), dtype=np.uint32).tobytes()
    forget_all(mesh)
    first = ask(mesh, prompt)
    assert first.cached_tokens == 0, "a bench prompt was cached"
    num_pages = NUM_TOKENS // PAGE_TOKENS
    assert wait_stored(mesh, num_pages, patience_s=_STORE_S) == num_pages
    second = ask(mesh, prompt)
    assert second.cached_tokens == _HIT_TOKENS, second.cached_tokens
    assert second.all_from(tier.counted), f"not from {tier.name}: {second.hits}"
    return first.ttft_s, second.ttft_s
