"""Time to the first token of a long prompt that comes again, by where its pages are: one stage.

Recomputed, from device pages, from pinned host pages, and from Redis with one server and several.
Prompts are cut into chunks of one size, and nothing is planned: loads are never given up for being
slow, nor is a prompt computed because that would be faster. That Redis has all of a prompt is
waited for. Where the tokens of a hit came from is told as the scheduler counts it (device, host,
Redis); whole says that it was one tier.

131072 tokens of Qwen3-8B's shape are 19.3 GB. The device holds them once, host pages twice (two
prompts take turns on the device), and torch rounds pinned memory up to a power of two: 64 GiB.
Redis takes a quarter more than they are, and what was read waits in as much pinned memory, which
the first load has to take: that takes seconds, and the second finds it.
Run: python -m tests.bench.gpu_cached_prefix [--tiers host redis-1 redis-4] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chunkmesh.cli.gpus import stage_devices
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from tests.bench import machine
from tests.bench.cached_prompts import Tier, Told, ask, wait_stored
from tests.bench.scaling_prompts import Bench
from tests.bench.scaling_results import Clock, Results
from tests.bench.shape_folder import SHAPES, write_shape
from tests.valkey import running_valkey

PAGE_TOKENS = 128
START_S = 40.0
"""Foreseen of a mesh."""
STORE_S = 20.0
"""Without a new page, after which no more are waited for."""
WHOLE = 0.99
"""Of a hit, from one tier: a page or two of a prompt may have stayed on the device."""
_PATIENT = (
    "--chunk-strategy=fixed",
    "--load-policy=wait_complete",
    "--stage-deadline-floor=0",
    "--worker-timeout=60",  # kernels compile with the first requests, and hold the interpreter
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a prompt."""

    tokens: int
    bytes_per_token: int
    """Of keys and values in all layers, in two bytes each."""

    @property
    def pages(self) -> int:
        """Full ones."""
        return self.tokens // PAGE_TOKENS

    @property
    def hit_tokens(self) -> int:
        """How many of its tokens may be found: the last one is always computed."""
        return (self.tokens - 1) // PAGE_TOKENS * PAGE_TOKENS

    @property
    def gigabytes(self) -> float:
        """All that may be found."""
        return self.hit_tokens * self.bytes_per_token / 1e9


def bytes_per_token(shape: str) -> int:
    """Return what keys and values of a token take in two bytes each."""
    fields = SHAPES[shape]
    heads, width = int(fields["num_key_value_heads"]), int(fields["head_dim"])
    return int(fields["num_hidden_layers"]) * 2 * heads * width * 2


class Measured:
    """One mesh after the other, and rows of what they did."""

    def __init__(
        self, path: Path, vocab_size: int, arguments: argparse.Namespace, results: Results
    ) -> None:
        self._path = path
        self._vocab_size = vocab_size
        self._arguments = arguments
        self._results = results
        self._clock = Clock(arguments.limit_s)
        self._sizes = Sizes(
            tokens=arguments.prompt, bytes_per_token=bytes_per_token(arguments.shape)
        )

    def devices_and_host(self) -> None:
        """Measure prompts that the device has, then those that it has given up and the host has.

        There is room for one prompt on the device and for two in host memory, so that they take
        turns on the device.
        """
        size_gb = 2.05 * self._sizes.tokens * self._sizes.bytes_per_token / 1e9 + 0.1
        with self._mesh("host", (), (f"--hicache-size={size_gb:.3f}",), None) as (mesh, bench):
            one, other = bench.prompt(), bench.prompt()
            self._tell("recomputed", "host", ask(mesh, one))
            for _ in range(self._arguments.rounds):
                self._hit("device", "host", ask(mesh, one))
            self._tell("recomputed", "host", ask(mesh, other))
            for index in range(self._arguments.rounds):
                if self._clock.allows(10):
                    self._hit("host", "host", ask(mesh, other if index % 2 else one))

    def redis(self, num_servers: int) -> None:
        """Measure a prompt of which the devices keep nothing, on servers that share its pages."""
        name = f"redis-{num_servers}"
        with contextlib.ExitStack() as stack:
            urls = []
            for _ in range(num_servers):
                # A unix socket's path may not be long.
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
                server = stack.enter_context(running_valkey(folder))
                urls.append(server.unix_url if self._arguments.unix else server.url)
            made = self._mesh(name, ("--no-enable-prefix-caching",), (), ",".join(urls))
            mesh, bench = stack.enter_context(made)
            self._stored_and_found(mesh, bench.prompt(), name)

    def _stored_and_found(self, mesh: LocalMesh, prompt: bytes, name: str) -> None:
        num_before = wait_stored(mesh, self._num_warm_tokens // PAGE_TOKENS, patience_s=STORE_S)
        first = ask(mesh, prompt)
        self._tell("recomputed", name, first)
        begun_s = time.monotonic()
        wanted = num_before + self._sizes.pages
        num_stored = wait_stored(mesh, wanted, patience_s=STORE_S) - num_before
        waited_s = time.monotonic() - begun_s
        self._results.add(
            what="stored",
            mesh=name,
            pages=num_stored,
            of=self._sizes.pages,
            behind_first_token_s=waited_s,
            gb_per_s=num_stored
            * PAGE_TOKENS
            * self._sizes.bytes_per_token
            / 1e9
            / (first.ttft_s + waited_s),
        )
        took_s = 3 * first.ttft_s
        for _ in range(self._arguments.redis_rounds):
            if self._clock.allows(took_s):
                told = ask(mesh, prompt)
                took_s = told.ttft_s
                self._hit("redis", name, told)

    @contextlib.contextmanager
    def _mesh(
        self,
        name: str,
        scheduler_flags: tuple[str, ...],
        worker_flags: tuple[str, ...],
        redis_url: str | None,
    ) -> Iterator[tuple[LocalMesh, Bench]]:
        """Run a mesh that has computed a short prompt already."""
        begun_s = time.monotonic()
        options = self._options(name, scheduler_flags, worker_flags, redis_url)
        with LocalMesh(options) as mesh:
            bench = Bench(mesh, self._vocab_size, self._sizes.tokens)
            (worker,) = bench.info().workers
            ready_s = time.monotonic() - begun_s
            ask(mesh, bench.prompt(self._num_warm_tokens))
            self._results.add(
                what="start",
                mesh=name,
                ready_s=ready_s,
                first_prompt_s=time.monotonic() - begun_s - ready_s,
                device=worker.device,
                kv_tokens=self._kv_tokens,
            )
            yield mesh, bench

    @property
    def _num_warm_tokens(self) -> int:
        """Two chunks: one behind nothing, one behind a prefix."""
        return min(2 * int(self._arguments.chunk), self._sizes.tokens)

    @property
    def _kv_tokens(self) -> int:
        """One prompt and its answer: of two, one has to leave the device."""
        return (self._sizes.pages + 2) * PAGE_TOKENS

    def _options(
        self,
        name: str,
        scheduler_flags: tuple[str, ...],
        worker_flags: tuple[str, ...],
        redis_url: str | None,
    ) -> MeshOptions:
        arguments = self._arguments
        return MeshOptions(
            model_path=self._path,
            num_stages=1,
            devices=stage_devices(arguments.device, None),
            page_tokens=PAGE_TOKENS,
            chunked_prefill_tokens=arguments.chunk,
            cache=redis_url is not None,
            redis_url=redis_url,
            scheduler_flags=(*_PATIENT, "--max-outstanding-stores=4096", *scheduler_flags),
            worker_flags=(
                "--load-format=dummy",
                "--dtype=bfloat16",
                "--profile=off",
                "--warmup-mode=off",
                "--cuda-graph-max-bs=0",
                f"--max-total-tokens={self._kv_tokens}",
                *worker_flags,
            ),
            ready_timeout_s=120,
            log_dir=arguments.log_dir and arguments.log_dir / name,
        )

    def run(self) -> None:
        """Measure the wanted meshes that there is time for."""
        for tier in self._arguments.tiers:
            if not self._clock.allows(START_S):
                self._results.add(what="no time", mesh=tier)
            elif tier == "host":
                self.devices_and_host()
            else:
                self.redis(int(tier.removeprefix("redis-")))

    def _hit(self, tier: Tier, mesh: str, told: Told) -> None:
        whole = told.hits[tier] >= WHOLE * self._sizes.hit_tokens
        self._tell(tier, mesh, told, whole=whole)

    def _tell(self, what: str, mesh: str, told: Told, **more: bool) -> None:
        loaded_gb = told.cached_tokens * self._sizes.bytes_per_token / 1e9
        self._results.add(
            what=what,
            mesh=mesh,
            ttft_s=told.ttft_s,
            gb_per_s=loaded_gb / told.ttft_s,
            cached=told.cached_tokens,
            hits=list(told.hits.values()),
            **more,
        )


def main() -> None:
    """Measure what the arguments say, within the time limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_cached_prefix")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--prompt", type=int, default=131072)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument(
        "--tiers", nargs="+", default=["host", "redis-1", "redis-4"], help="meshes, in this order"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of hits on device and host")
    parser.add_argument("--redis-rounds", type=int, default=1)
    parser.add_argument("--unix", action="store_true", help="Redis by unix sockets, not TCP")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cuda")
    parser.add_argument("--limit-s", type=float, default=270.0)
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about = {
        "command": " ".join(["python -m tests.bench.gpu_cached_prefix", *sys.argv[1:]]),
        "machine": machine.describe(),
    }
    with tempfile.TemporaryDirectory() as folder:
        vocab_size = write_shape(Path(folder), arguments.shape)
        Measured(Path(folder), vocab_size, arguments, Results(arguments.json, about)).run()


if __name__ == "__main__":
    main()
