"""Where the time of a stage goes on a GPU: products, attention, other kernels, nothing; its host.

A whole model as one stage, as a worker serves it: chunks through a paged pool, launched two ahead,
another thread waiting for them. First a whole prompt is timed. Then a few chunks behind each of
some prefixes run under torch's profiler, which slows launches, and what kernels took is summed over
all chunks on lines between these. Set beside it is the time that the same operations would take at
ceilings that were measured by themselves. What waits for other stages is not in here: there is one.

The same trace tells whether the thread that launches ever waits for the GPU inside a launch, and
how much of its work is done while the GPU computes.
Run: python -m tests.bench.gpu_time_shares [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.completions import Begun, Completions
from stage_worker.model_config import ModelConfig, read_model_config
from stage_worker.paged.load import load_paged_stage
from stage_worker.weight_choice import Quantization, WeightChoice
from tests.bench import machine
from tests.bench.kernel_shares import KINDS, LAUNCH, Shares, longest, shares, whole
from tests.bench.layer_operations import layer_operations
from tests.bench.prompt_microbatch import PAGE_TOKENS, prompt_microbatch
from tests.bench.scaling_results import Clock, Results
from tests.bench.shape_folder import SHAPES, write_shape

NUM_NAMED = 8
"""Kernels that are named, of those behind the longest prefix."""
PER_MS = 1e9
"""Operations in a millisecond at one TFLOP/s."""


class ServedStage:
    """All layers on one stage, driven as the compute thread of a worker does it."""

    def __init__(
        self, path: Path, quantization: Quantization, arguments: argparse.Namespace
    ) -> None:
        self._chunk: int = arguments.chunk
        self._prompt: int = arguments.prompt
        self._device = torch.device(arguments.device)
        self._stage = load_paged_stage(
            path,
            layers=range(int(SHAPES[arguments.shape]["num_hidden_layers"])),
            device=self._device,
            choice=WeightChoice(load_format="dummy", quantization=quantization),
        )
        self.backends = [
            f"{each.operation}: {each.name}" for each in self._stage.description.backends
        ]
        self._stage.allocate(num_pages=-(-self._prompt // PAGE_TOKENS), page_tokens=PAGE_TOKENS)
        self._ids_T = np.random.default_rng().integers(0, 256, self._prompt, dtype=np.uint32)
        self._crashes: list[BaseException] = []
        self._acks: list[pb.Ack] = []
        self._seq_no = 0
        self.launches_ms: list[float] = []
        """How long each launch of the last run kept the host busy."""

    def run(self, starts: Sequence[int]) -> list[pb.Ack]:
        """Compute chunks that lie behind one another; return what is told of them."""
        self._acks = []
        self.launches_ms.clear()
        completions = Completions(self._acks.append, self._crashes.append)
        completions.start()
        for start in starts:
            self._seq_no += 1
            microbatch = prompt_microbatch(
                self._ids_T,
                start,
                self._chunk,
                seq_no=self._seq_no,
                brings_all=start == starts[0],
            )
            completions.make_room()
            asked_s = time.monotonic()
            with record_function(LAUNCH):
                launched = self._stage.launch(microbatch, None, None)
            self.launches_ms.append(1000 * (time.monotonic() - asked_s))
            completions.add(
                Begun(
                    epoch=0,
                    seq_no=microbatch.seq_no,
                    asked_s=asked_s,
                    launched=launched,
                    send_us=lambda: 0,
                )
            )
        completions.stop()
        self._stage.release(0)
        if self._crashes:
            raise self._crashes[0]
        return self._acks

    def traced(self, starts: Sequence[int]) -> list[dict[str, Any]]:
        """Compute chunks under the profiler; return its events."""
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize(self._device)
        with profile(activities=activities) as profiler:
            self.run(starts)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events: list[dict[str, Any]] = json.loads(
                path.read_text(errors="replace"), strict=False
            )["traceEvents"]
        return events


def ideal_ms(config: ModelConfig, chunk: int, start: int, ceilings: Sequence[float]) -> list[float]:
    """Return what products and attention of a chunk take at so many TFLOP/s each.

    Of the last layer nearly nothing is computed but for the last token of a prompt, so it is left
    out.
    """
    products = attention = 0.0
    for layer in range(config.num_layers - 1):
        each = layer_operations(config, layer, chunk, start)
        products += each.products
        attention += each.attention
    return [products / ceilings[0] / PER_MS, attention / ceilings[1] / PER_MS]


def summed(points: Sequence[Shares], starts: Sequence[int]) -> dict[str, float]:
    """Sum over all chunks of a prompt, in ms, what was measured behind some prefixes."""

    def over(values: Sequence[float]) -> float:
        return whole(
            [(each.prefix, value) for each, value in zip(points, values, strict=True)], starts
        )

    return {
        "wall": over([each.wall_ms for each in points]),
        **{kind: over([each.by_kind[kind] for each in points]) for kind in KINDS},
        "idle": over([each.idle_ms for each in points]),
        "host": over([each.host_ms for each in points]),
    }


def losses(total_ms: dict[str, float], ideal: Sequence[float]) -> dict[str, float]:
    """Return what keeps a prompt from its ideal time, in ms, the largest first."""
    found = {
        "products below their ceiling": total_ms["products"] - ideal[0],
        "attention below its ceiling": total_ms["attention"] - ideal[1],
        "other kernels": total_ms["other"],
        "copies": total_ms["copies"],
        "the GPU idle": total_ms["idle"],
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


class Measured:
    """Measures stages one after the other."""

    def __init__(self, arguments: argparse.Namespace, results: Results, clock: Clock) -> None:
        self._arguments = arguments
        self._results = results
        self._clock = clock
        self._starts = range(0, arguments.prompt, arguments.chunk)

    def measure(self, path: Path, quantization: Quantization) -> None:
        """Measure a stage with weights of this kind."""
        begun_s = time.monotonic()
        stage = ServedStage(path, quantization, self._arguments)
        stage.run(self._starts[:2])
        # The first use of the profiler loads what it needs.
        stage.traced(self._starts[:2])
        self._results.add(
            what="start",
            weights=quantization,
            seconds=time.monotonic() - begun_s,
            backends=stage.backends,
        )
        stage.run(self._starts)  # compiles what longer prefixes need
        begun_s = time.monotonic()
        acks = stage.run(self._starts)
        wall_s = time.monotonic() - begun_s
        self._results.add(
            what="whole prompt",
            weights=quantization,
            tokens=self._arguments.prompt,
            wall_s=wall_s,
            gpu_busy=sum(ack.compute_us for ack in acks) / 1e6 / wall_s,
            host_ms_a_chunk=statistics.median(stage.launches_ms),
        )
        points = self._points(stage, quantization)
        if len(points) > 1:
            self._tell_whole(path, quantization, points, wall_s)

    def _points(self, stage: ServedStage, quantization: Quantization) -> list[Shares]:
        window = self._arguments.window
        last = len(self._starts) - window
        points = []
        for index in range(self._arguments.points):
            first = last * index // (self._arguments.points - 1)
            if not self._clock.allows(5):
                break
            starts = self._starts[first : first + window]
            trace = stage.traced(starts)
            point = shares(trace, starts)
            if point is None:
                self._results.add(what="no kernels in the trace", weights=quantization)
                break
            points.append(point)
            self._results.add(
                what="chunk",
                weights=quantization,
                behind=point.prefix,
                wall_ms=point.wall_ms,
                **{f"{kind}_ms": point.by_kind[kind] for kind in KINDS},
                idle_ms=point.idle_ms,
                host_ms=point.host_ms,
                host_beside_gpu=point.overlap_ms / point.host_ms,
                waits=point.waits,
                allocations=point.allocations,
            )
            if first == last:
                for name, ms in longest(trace, NUM_NAMED):
                    self._results.add(what="kernel", ms=ms, name=name[:90])
        return points

    def _tell_whole(
        self, path: Path, quantization: Quantization, points: Sequence[Shares], wall_s: float
    ) -> None:
        arguments = self._arguments
        config = read_model_config(path)
        product_tflops = arguments.fp8_tflops if quantization == "fp8" else arguments.bf16_tflops
        ceilings = (product_tflops, arguments.attention_tflops)
        ideals = [ideal_ms(config, arguments.chunk, start, ceilings) for start in self._starts]
        ideal = [sum(each) for each in zip(*ideals, strict=True)]
        total = summed(points, self._starts)
        found = losses(total, ideal)
        done = ideal[0] * ceilings[0] + ideal[1] * ceilings[1]
        self._results.add(
            what="shares of the wall time",
            weights=quantization,
            wall_ms=total["wall"],
            of_measured_prompt=total["wall"] / 1000 / wall_s,
            **{kind: total[kind] / total["wall"] for kind in KINDS},
            idle=total["idle"] / total["wall"],
            host_busy=total["host"] / total["wall"],
        )
        self._results.add(
            what="against ceilings",
            weights=quantization,
            ideal_ms=sum(ideal),
            utilisation=sum(ideal) / total["wall"],
            tflops=done / total["wall"],
            product_tflops=ideal[0] * ceilings[0] / max(total["products"], 1e-9),
            attention_tflops=ideal[1] * ceilings[1] / max(total["attention"], 1e-9),
            largest_loss=next(iter(found)),
            **{f"lost_ms: {name}": ms for name, ms in found.items()},
        )
        self._results.add(
            what="host beside the GPU",
            weights=quantization,
            waits_in_launches=sum(each.waits for each in points),
            host_ms_a_chunk=sum(each.host_ms for each in points) / len(points),
            overlap_ms_a_chunk=sum(each.overlap_ms for each in points) / len(points),
        )


def main() -> None:
    """Print rows and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_time_shares")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--prompt", type=int, default=131072)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--points", type=int, default=5, help="prefixes, from none to the longest")
    parser.add_argument(
        "--window", type=int, default=3, help="chunks behind each; the first not counted"
    )
    parser.add_argument("--weights", nargs="+", choices=["auto", "fp8"], default=["auto", "fp8"])
    parser.add_argument("--bf16-tflops", type=float, default=700.0)
    parser.add_argument("--fp8-tflops", type=float, default=1250.0)
    parser.add_argument("--attention-tflops", type=float, default=630.0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--limit-s", type=float, default=130.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    name = "CPU"
    if arguments.device != "cpu":
        name = torch.cuda.get_device_name(torch.device(arguments.device))
    about = {
        "command": " ".join(["python -m tests.bench.gpu_time_shares", *sys.argv[1:]]),
        "machine": f"{name}, torch {torch.__version__}, {machine.describe()}",
    }
    measured = Measured(arguments, Results(arguments.json, about), Clock(arguments.limit_s))
    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), arguments.shape)
        for quantization in arguments.weights:
            measured.measure(Path(folder), quantization)
            gc.collect()
            if arguments.device != "cpu":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
