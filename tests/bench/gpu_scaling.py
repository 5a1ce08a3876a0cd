"""Long prompts on meshes of one stage and more, a GPU each, through `chunkmesh up` and gRPC.

Time to the first token of one prompt, by plan of its chunks, and the throughput of many in a row.
One mesh a number of stages serves all plans: clients may cut their own prompts. What was measured
is printed and written at once; nothing is begun behind the time limit. Last comes what the
simulator says of more stages, by the latency of those that were measured.
Run: python -m tests.bench.gpu_scaling --stages 1 2 [--shape qwen3-30b-a3b] [--quantization fp8]
[--in-row 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from chunkmesh.cli.gpus import stage_devices
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.chunk_dynamic import DynamicChunks
from scheduler.latency_model import PipelineLatency
from scheduler.latency_terms import told_latency
from tests.bench import machine
from tests.bench.scaling_predictions import Cuts, cut, link_latency_s, predicted, told_model
from tests.bench.scaling_prompts import Bench, Plan
from tests.bench.scaling_results import Clock, Results
from tests.bench.shape_folder import SHAPES, write_shape
from tests.bench.stage_gaps import stage_gaps
from tests.chunk_plans import sizes

PAGE_TOKENS = 128
SMOOTH_FACTOR = 0.75
DECODED = 64
"""Tokens behind a prompt whose distance is measured."""
PREDICTION_S = 5.0
"""Of the machine's time, for one."""
GROWTH = 1.9
"""Of the time to the first token with the length, as an exponent: attention is most of it."""


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
        profiles = (arguments.log_dir or path) / "profiles"
        known: pb.GetServerInfoResponse | None = None
        for num_stages in arguments.stages:
            if not clock.allows(60):
                break
            begun_s = time.monotonic()
            with LocalMesh(_options(path, num_stages, profiles, arguments)) as mesh:
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
                _keep_refused(info, num_stages, profiles, results)
                known = _better_known(known, info)
                _measure(bench, num_stages, arguments, results, clock)
        if known is not None:
            _predict(known, arguments, results, clock)


def _better_known(
    known: pb.GetServerInfoResponse | None, info: pb.GetServerInfoResponse
) -> pb.GetServerInfoResponse:
    """Return which of two meshes says more of a stage: accepted fits, then more stages."""
    if known is None:
        return info
    return max(
        known, info, key=lambda each: (not any(fit.refused for fit in each.fits), len(each.fits))
    )


def _keep_refused(
    info: pb.GetServerInfoResponse, num_stages: int, profiles: Path, results: Results
) -> None:
    """Keep what was measured of stages whose latency was refused, so that it can be understood."""
    for fit in info.fits:
        layers = f"{fit.layers.first}-{fit.layers.last - 1}"
        for file in sorted(profiles.glob("*.json")) if fit.refused else ():
            profile = json.loads(file.read_text())
            if profile["subject"]["layers"] == layers:
                results.add(
                    what="refused profile",
                    stages=num_stages,
                    layers=layers,
                    why=fit.refused,
                    points=profile["points"],
                )


def _predict(
    info: pb.GetServerInfoResponse, arguments: argparse.Namespace, results: Results, clock: Clock
) -> None:
    """Add what the simulator says of one prompt on all numbers of stages, those measured too."""
    model = told_model(info.fits)
    if model is None:
        results.add(what="no prediction", why=[fit.refused for fit in info.fits])
        return
    link_s = link_latency_s(info.workers)
    one_s: dict[str, float] = {}
    wanted = sorted({1, *arguments.stages, *arguments.predicted_stages})
    kinds = {
        "fixed": Cuts(chunk_tokens=min(arguments.fixed), is_planned=False),
        "optimal": Cuts(
            chunk_tokens=max(arguments.fixed),
            is_planned=True,
            alignment_tokens=max(1, info.chunk_alignment_tokens),
        ),
    }
    for num_stages, (kind, cuts) in itertools.product(wanted, kinds.items()):
        if num_stages > model.num_layers or not clock.allows(PREDICTION_S):
            continue
        found = predicted(cut(model, num_stages), arguments.prompt, cuts, link_s)
        one_s.setdefault(kind, found.ttft_s)
        results.add(
            what="predicted",
            stages=num_stages,
            kind=kind,
            by_stages=len(info.fits),
            refused=any(fit.refused for fit in info.fits),
            chunks=found.num_chunks,
            ttft_s=found.ttft_s,
            of_one_stage=found.ttft_s / one_s[kind],
            measured_s=results.best_ttft_s(num_stages, kind),
        )


def _measure(
    bench: Bench, num_stages: int, arguments: argparse.Namespace, results: Results, clock: Clock
) -> None:
    """Measure single prompts by all plans, then what else is wanted, the longest prompts last."""
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
    if arguments.decode:
        _measure_decode(bench, num_stages, arguments.prompt, results, clock)
    is_wanted = num_stages in (arguments.in_row_stages or arguments.stages[-1:])
    for kind in arguments.in_row_plans if arguments.in_row and is_wanted else ():
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
    _measure_other_lengths(bench, num_stages, arguments, results, clock)


def _measure_decode(
    bench: Bench, num_stages: int, num_long: int, results: Results, clock: Clock
) -> None:
    """Measure the time between the tokens of one request, behind a short and a long prompt."""
    for num_prompt in (4096, num_long):
        if clock.allows(30):
            answer = bench.complete(
                bench.prompt(num_prompt), Plan(name="", chunk_tokens=()), new_tokens=DECODED
            )
            itl_ms = (answer.e2e_ms - answer.ttft_ms) / (DECODED - 1)
            results.add(what="decode", stages=num_stages, behind=num_prompt, itl_ms=itl_ms)


def _measure_other_lengths(
    bench: Bench, num_stages: int, arguments: argparse.Namespace, results: Results, clock: Clock
) -> None:
    """Measure one prompt of each other length that there is time for, by the scheduler's plan."""
    known_s = results.best_ttft_s(num_stages, "optimal") or 0.0
    for num_prompt in _other_lengths(num_stages, arguments):
        foreseen_s = known_s * (num_prompt / arguments.prompt) ** GROWTH
        if not clock.allows(max(foreseen_s, 10)):
            results.add(what="no time", stages=num_stages, prompt=num_prompt, foreseen_s=foreseen_s)
            continue
        answer = bench.complete(
            bench.prompt(num_prompt), Plan(name="optimal", chunk_tokens=()), timeline=True
        )
        results.add(
            what="other length",
            stages=num_stages,
            prompt=num_prompt,
            chunks=len(answer.chunk_tokens),
            ttft_s=answer.ttft_ms / 1000,
            tokens_per_s=num_prompt / answer.ttft_ms * 1000,
            busy=_busy(answer, num_stages),
            timeline=[MessageToDict(timing) for timing in answer.timeline],
        )


def _other_lengths(num_stages: int, arguments: argparse.Namespace) -> list[int]:
    """Return the lengths that a mesh is measured with besides the main one."""
    is_wanted = num_stages in (arguments.also_stages or arguments.stages)
    return list(arguments.also) if is_wanted else []


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
    gaps = stage_gaps(answer.timeline)
    results.add(
        what="overhead",
        stages=num_stages,
        plan=plan.name,
        microbatches=len(answer.timeline),
        wall_ms=[each.wall_ms for each in gaps],
        compute_ms=[each.compute_ms for each in gaps],
        a_microbatch_ms=[each.overhead_ms for each in gaps],
        median_gap_ms=[each.median_gap_ms for each in gaps],
        p90_gap_ms=[each.p90_gap_ms for each in gaps],
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
        latency = PipelineLatency(tuple(told_latency(fit.terms) for fit in fits))
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


def _options(
    path: Path, num_stages: int, profiles: Path, arguments: argparse.Namespace
) -> MeshOptions:
    devices = stage_devices(arguments.device, arguments.devices)
    most_tokens = max(
        arguments.prompt * min(2 * num_stages, 6), *_other_lengths(num_stages, arguments), 0
    )
    capacity = arguments.kv_tokens or most_tokens + (1 << 14)
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
            f"--quantization={arguments.quantization}",
            f"--profile-dir={profiles}",
        ),
        ready_timeout_s=300,
        log_dir=arguments.log_dir and arguments.log_dir / f"stages-{num_stages}",
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_scaling")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--fp8", action="store_true", help="config.json says so")
    parser.add_argument("--quantization", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--prompt", type=int, default=131072)
    parser.add_argument("--plans", nargs="+", default=["optimal", "fixed", "dynamic"])
    parser.add_argument("--fixed", type=int, nargs="+", default=[2048, 4096, 6144, 8192])
    parser.add_argument("--dynamic", type=int, nargs="+", default=[6144, 8192])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--in-row", type=int, default=0, help="prompts at once")
    parser.add_argument(
        "--in-row-stages", type=int, nargs="+", help="meshes; the last if not given"
    )
    parser.add_argument("--in-row-plans", nargs="+", default=["optimal", "fixed"])
    parser.add_argument(
        "--also",
        type=int,
        nargs="+",
        default=[],
        help="other lengths of prompts, planned as optimal",
    )
    parser.add_argument("--also-stages", type=int, nargs="+", help="meshes; all if not given")
    parser.add_argument("--decode", action="store_true", help="time between tokens too")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--devices", help="GPUs of stages in turn, such as 0,0")
    parser.add_argument("--predicted-stages", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--kv-tokens", type=int, default=0)
    parser.add_argument("--max-chunk-ms", type=float, default=0.0)
    parser.add_argument("--profile-s", type=float, default=20.0)
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _over(one_s: float | None, each_s: float) -> float | None:
    return None if one_s is None else one_s / each_s


if __name__ == "__main__":
    main()
