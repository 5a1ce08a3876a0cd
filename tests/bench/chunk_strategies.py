"""`python -m tests.bench strategies`: chunk strategies on the demo, in one run.

Meshes of two one-thread stages, side by side and asked in turn. All but `fixed` 512 have the demo's
settings: no microbatch has more than 256 tokens of prefill. Smaller fixed chunks need no mesh of
their own: the prompt's chunk_tokens asks for them. The stages' profile is measured anew when the
first mesh starts, with nothing else running, and the others read it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from tests.bench.measure import Sample, cell, interleave, pair_ratios, table
from tests.bench.mesh_client import complete, new_prompt

PROMPT_TOKENS = 1536
_AT_ONCE = 3
_AT_ONCE_TOKENS = 512
_WARM_UP_TOKENS = 1024
"""Enough microbatches for the fits to follow the machine."""
_LARGEST = 512
"""Of fixed chunks; the demo's are 256."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one mesh cuts prompts."""

    strategy: str
    chunk_tokens: int | None = None
    """None leaves it to the scheduler, as the demo does."""

    def __str__(self) -> str:
        return (
            self.strategy if self.chunk_tokens is None else f"{self.strategy} {self.chunk_tokens}"
        )


OPTIMAL = Choice(strategy="optimal")
LARGEST = Choice(strategy="fixed", chunk_tokens=_LARGEST)
CHOICES = (OPTIMAL, Choice(strategy="dynamic"), Choice(strategy="fixed", chunk_tokens=256), LARGEST)
SMALLER = tuple(Choice(strategy="fixed", chunk_tokens=tokens) for tokens in (64, 128))
"""Of one prompt alone, which the mesh of the largest cuts alike if the client says so."""


@contextlib.contextmanager
def _meshes(model_path: Path) -> Iterator[dict[str, LocalMesh]]:
    """Run a mesh for each choice, warmed up."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        meshes = {}
        for choice in CHOICES:
            options = MeshOptions(
                model_path=model_path,
                num_stages=2,
                chunked_prefill_tokens=choice.chunk_tokens,
                cache=False,
                scheduler_flags=(f"--chunk-strategy={choice.strategy}",),
                worker_flags=(f"--profile-dir={folder}",),
            )
            mesh = meshes[str(choice)] = stack.enter_context(LocalMesh(options))
            with GenerationClient(HostPort.parse(mesh.scheduler_address)) as client:
                info = client.server_info()
            assert info.chunk_strategy == choice.strategy, info.chunk_strategy_reason
        for mesh in meshes.values():
            complete(mesh, new_prompt(_WARM_UP_TOKENS), 8)
        yield meshes


def compare(model_path: Path, *, rounds: int) -> str:
    """Compare times to the first token of one prompt, and of some at once."""
    with _meshes(model_path) as meshes:
        return "\n".join([_alone(meshes, rounds=rounds), _at_once(meshes, rounds=rounds)])


def _alone(meshes: dict[str, LocalMesh], *, rounds: int) -> str:
    """Compare one prompt's time to its first token, and say how it was cut last."""
    cuts: dict[str, str] = {}

    def first_token_s(choice: Choice) -> float:
        given = choice in SMALLER and choice.chunk_tokens
        answer = complete(
            meshes[str(LARGEST if given else choice)],
            new_prompt(PROMPT_TOKENS),
            1,
            chunk_tokens=[given] if given else (),
        )
        sizes = answer.chunk_tokens
        cuts[str(choice)] = f"{len(sizes)}: {sizes[0]} .. {sizes[-1]}"
        return answer.ttft_ms / 1000

    samples = interleave(
        rounds,
        {str(each): functools.partial(first_token_s, each) for each in (*CHOICES, *SMALLER)},
        unit="s",
    )
    return table(
        f"One prompt of {PROMPT_TOKENS} tokens on two one-thread stages"
        " (aim: optimal at most 5 % behind the best fixed)",
        ["strategy", "chunks", "TTFT", "prefill", f"{OPTIMAL} against it"],
        [
            [
                name,
                cuts[name],
                cell(sample),
                f"{PROMPT_TOKENS / sample.median:.0f} tok/s",
                _against(samples, name),
            ]
            for name, sample in samples.items()
        ],
    )


def _at_once(meshes: dict[str, LocalMesh], *, rounds: int) -> str:
    """Compare the time until the last of some prompts has its first token."""
    num_tokens = _AT_ONCE_TOKENS
    samples = interleave(
        rounds,
        {name: functools.partial(_last_ttft_s, mesh, num_tokens) for name, mesh in meshes.items()},
        unit="s",
    )
    return table(
        f"{_AT_ONCE} prompts of {num_tokens} tokens at once, until the last first token",
        ["strategy", "time", "prefill", f"{OPTIMAL} against it"],
        [
            [
                name,
                cell(sample),
                f"{_AT_ONCE * num_tokens / sample.median:.0f} tok/s",
                _against(samples, name),
            ]
            for name, sample in samples.items()
        ],
    )


def _against(samples: dict[str, Sample], name: str) -> str:
    """Write how much of another's time optimal takes, in pairs."""
    return "" if name == str(OPTIMAL) else cell(pair_ratios(samples[str(OPTIMAL)], samples[name]))


def _last_ttft_s(mesh: LocalMesh, num_tokens: int) -> float:
    """Run some prompts at once; return when the last has its first token."""
    prompts = [new_prompt(num_tokens) for _ in range(_AT_ONCE)]
    threads = [threading.Thread(target=complete, args=(mesh, prompt, 1)) for prompt in prompts]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin
