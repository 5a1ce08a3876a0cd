"""Long prompts on meshes of one stage and more, a GPU each, through `chunkmesh up` and gRPC.

Time to the first token of one prompt, by plan of its chunks, and the throughput of many in a row.
One mesh a number of stages serves all plans: clients may cut their own prompts. What was measured
is printed and written at once; nothing is begun behind the time limit.
Run: python -m tests.bench.gpu_scaling --stages 1 2 [--fp8] [--in-row 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.gpus import stage_devices
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.chunk_dynamic import DynamicChunks
from scheduler.latency_model import PipelineLatency, StageLatency
from tests.bench import machine
from tests.bench.shape_folder import SHAPES, write_shape
from tests.chunk_plans import sizes

PAGE_TOKENS = 128
SMOOTH_FACTOR = 0.75


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How prompts are cut."""

    name: str
    chunk_tokens: tuple[int, ...]
    """Empty leaves it to the scheduler."""


class Clock:
    """Says whether there is time to begin something."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s

    def allows(self, seconds: float) -> bool:
        """Whether so much is left."""
        return time.monotonic() + seconds < self._end_s


class Results:
    """Rows of the table, printed and written as they come."""

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = {"about": about, "rows": []}
        print(json.dumps(about), flush=True)

    def add(self, **row: Any) -> None:
        """Add a row; a timeline goes to the file only."""
        self._content["rows"].append(row)
        shown = {key: value for key, value in row.items() if key not in {"timeline", "info"}}
        print("  ".join(f"{key}={_short(value)}" for key, value in shown.items()), flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps(self._content))

    def best_ttft_s(self, num_stages: int, kind: str) -> float | None:
        """Return the least median of a kind of plans, None without any."""
        medians = [
            row["median_s"]
            for row in self._content["rows"]
            if row["what"] == "ttft" and row["stages"] == num_stages and row["kind"] == kind
        ]
        return min(medians, default=None)


class Bench:
    """One mesh and the requests that are sent to it."""

    def __init__(self, mesh: LocalMesh, vocab_size: int, prompt_tokens: int) -> None:
        self._address = HostPort.parse(mesh.scheduler_address)
        self._vocab_size = vocab_size
        self._prompt_tokens = prompt_tokens
        self._random = np.random.default_rng()

    def info(self) -> pb.GetServerInfoResponse:
        """Return the state of the mesh."""
        with GenerationClient(self._address) as client:
            return client.server_info()

    def prompt(self, num_tokens: int | None = None) -> bytes:
        """Return a new random prompt, as bytes of ids."""
        size = num_tokens or self._prompt_tokens
        return self._random.integers(0, self._vocab_size, size, dtype=np.uint32).tobytes()

    def complete(
        self, prompt: bytes, plan: Plan, *, new_tokens: int = 1, timeline: bool = False
    ) -> pb.GenerateComplete:
        """Run one greedy request."""
        request = pb.GenerateRequest(
            input_ids_le=prompt,
            sampling_params=pb.SamplingParams(
                temperature=0, max_new_tokens=new_tokens, ignore_eos=True
            ),
            chunk_tokens=plan.chunk_tokens,
            return_timeline=timeline,
        )
        with GenerationClient(self._address) as client:
            *_, last = client.generate(request)
        assert last.complete.cached_tokens == 0, "a bench prompt was cached"
        return last.complete

    def in_row_s(self, plan: Plan, count: int) -> float:
        """Return the time that prompts take which are all there at once."""
        prompts = [self.prompt() for _ in range(count)]
        threads = [threading.Thread(target=self.complete, args=(each, plan)) for each in prompts]
        begun_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - begun_s


def main() -> None:
    """Measure what the arguments say, within the time limit."""
    arguments = _arguments()
    about = {
        "command": " ".join(["python -m tests.bench.gpu_scaling", *sys.argv[1:]]),
        "machine": machine.describe(),
    }
    results = Results(arguments.json, about)
    clock = Clock(arguments.limit_s)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        vocab_size = write_shape(path, arguments.shape, fp8=arguments.fp8)
        for num_stages in arguments.stages:
            if not clock.allows(60):
                break
            begun_s = time.monotonic()
            with LocalMesh(_options(path, num_stages, arguments)) as mesh:
                bench = Bench(mesh, vocab_size, arguments.prompt)
                info = bench.info()
                results.add(
                    what="start",
                    stages=num_stages,
                    seconds=time.monotonic() - begun_s,
                    planned=info.chunk_strategy,
                    why=info.chunk_strategy_reason,
                    devices=[worker.device for worker in info.workers],
                    links=[worker.outbound.transport for worker in info.workers],
                    backends=[
                        f"{each.operation}: {each.name}" for each in info.workers[0].backends
                    ],
                    info=MessageToDict(info),
                )
                _measure(bench, num_stages, arguments, results, clock)


def _measure(
    bench: Bench, num_stages: int, arguments: argparse.Namespace, results: Results, clock: Clock
) -> None:
    """Measure single prompts by all plans, then prompts in a row by the best of two kinds."""
    first = Plan(name="first", chunk_tokens=(min(arguments.fixed),))
    bench.complete(bench.prompt(min(arguments.prompt, 4096)), first, new_tokens=4)
    measured: dict[Plan, float] = {}
    last_s = 0.0
    for plan in _plans(bench, arguments):
        runs: list[float] = []
        answer = pb.GenerateComplete()
        for _ in range(arguments.rounds):
            if clock.allows(1.5 * last_s):
                answer = bench.complete(bench.prompt(), plan, timeline=True)
                last_s = answer.ttft_ms / 1000
                runs.append(last_s)
        if runs:
            measured[plan] = statistics.median(runs)
            _tell(results, num_stages, plan, runs, answer)
    is_last = num_stages == arguments.stages[-1]
    for kind in arguments.in_row_plans if arguments.in_row and is_last else ():
        of_kind = [plan for plan in measured if plan.name.startswith(kind)]
        if not of_kind:
            continue
        best = min(of_kind, key=lambda plan: measured[plan])
        if clock.allows(measured[best] * arguments.in_row * 1.3):
            seconds = bench.in_row_s(best, arguments.in_row)
            results.add(
                what="in a row",
                stages=num_stages,
                kind=kind,
                plan=best.name,
                prompts=arguments.in_row,
                seconds=seconds,
                seconds_a_prompt=seconds / arguments.in_row,
                against_one_stage=_over(results.best_ttft_s(1, kind), seconds / arguments.in_row),
            )
    for num_new, num_prompt in ((64, 4096), (64, arguments.prompt)) if arguments.decode else ():
        if clock.allows(30):
            answer = bench.complete(
                bench.prompt(num_prompt), Plan(name="", chunk_tokens=()), new_tokens=num_new
            )
            itl_ms = (answer.e2e_ms - answer.ttft_ms) / (num_new - 1)
            results.add(what="decode", stages=num_stages, behind=num_prompt, itl_ms=itl_ms)


def _tell(
    results: Results,
    num_stages: int,
    plan: Plan,
    runs: Sequence[float],
    answer: pb.GenerateComplete,
) -> None:
    kind = plan.name.partition(" ")[0]
    busy = _busy(answer, num_stages)
    median_s = statistics.median(runs)
    one_s = results.best_ttft_s(1, kind) if num_stages > 1 else None
    results.add(
        what="ttft",
        stages=num_stages,
        kind=kind,
        plan=plan.name,
        chunks=len(answer.chunk_tokens),
        median_s=median_s,
        best_s=min(runs),
        spread=max(runs) / min(runs) - 1,
        busy=busy,
        of_one_stage=None if one_s is None else median_s / one_s,
        timeline=[MessageToDict(timing) for timing in answer.timeline],
    )


def _busy(answer: pb.GenerateComplete, num_stages: int) -> list[float]:
    """Return the share of the time to the first token that each stage computed."""
    computed_us = [0] * num_stages
    for timing in answer.timeline:
        for stage, each in enumerate(timing.stages):
            computed_us[stage] += each.compute_us
    return [us / 1000 / answer.ttft_ms for us in computed_us]


def _plans(bench: Bench, arguments: argparse.Namespace) -> Iterator[Plan]:
    """Yield the plans to compare."""
    if "optimal" in arguments.plans:
        yield Plan(name="optimal", chunk_tokens=())
    if "fixed" in arguments.plans:
        for size in arguments.fixed:
            yield Plan(name=f"fixed {size}", chunk_tokens=(size,))
    fits = bench.info().fits
    if "dynamic" in arguments.plans and fits and all(fit.HasField("terms") for fit in fits):
        latency = PipelineLatency(tuple(_latency(fit.terms) for fit in fits))
        for size in arguments.dynamic:
            rule = DynamicChunks.of_pipeline(
                latency,
                chunk_tokens=size,
                page_tokens=PAGE_TOKENS,
                smooth_factor=SMOOTH_FACTOR,
                context_tokens=None,
            )
            cuts = sizes(0, rule.cut(0, arguments.prompt))
            yield Plan(name=f"dynamic {size}", chunk_tokens=tuple(cuts))


def _latency(terms: pb.LatencyTerms) -> StageLatency:
    told = MessageToDict(
        terms, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return StageLatency(**told)


def _options(path: Path, num_stages: int, arguments: argparse.Namespace) -> MeshOptions:
    devices = stage_devices(arguments.device, None)
    capacity = arguments.kv_tokens or arguments.prompt * min(2 * num_stages, 6) + (1 << 14)
    return MeshOptions(
        model_path=path,
        num_stages=num_stages,
        devices=devices,
        page_tokens=PAGE_TOKENS,
        chunked_prefill_tokens=max(arguments.fixed),
        cache=False,
        scheduler_flags=(
            "--chunk-strategy=optimal",
            f"--max-chunk-ms={arguments.max_chunk_ms}",
        ),
        worker_flags=(
            "--load-format=dummy",
            f"--max-total-tokens={capacity}",
            f"--profile-timeout={arguments.profile_s}",
        ),
        ready_timeout_s=300,
        log_dir=arguments.log_dir and arguments.log_dir / f"stages-{num_stages}",
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_scaling")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--prompt", type=int, default=131072)
    parser.add_argument("--plans", nargs="+", default=["optimal", "fixed", "dynamic"])
    parser.add_argument("--fixed", type=int, nargs="+", default=[2048, 4096, 6144, 8192])
    parser.add_argument("--dynamic", type=int, nargs="+", default=[6144, 8192])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--in-row", type=int, default=0, help="prompts at once, on the last mesh")
    parser.add_argument("--in-row-plans", nargs="+", default=["optimal", "fixed"])
    parser.add_argument("--decode", action="store_true", help="time between tokens too")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--kv-tokens", type=int, default=0)
    parser.add_argument("--max-chunk-ms", type=float, default=0.0)
    parser.add_argument("--profile-s", type=float, default=20.0)
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _over(one_s: float | None, each_s: float) -> float | None:
    return None if one_s is None else one_s / each_s


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return str(value)


if __name__ == "__main__":
    main()
