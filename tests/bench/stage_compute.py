"""Measures what stages compute per second, without any service, beside transformers.

Run: python -m tests.bench.stage_compute MODEL_FOLDER [--pairs 5] [--only TEXT] [--json FILE]
Every measurement is interleaved with the others, so that load from elsewhere hits all alike; wall
time (median, best) and the CPU time of the best are printed. "pipelined" runs two half-model
stages in two threads of one process, one torch thread each, as two workers would.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import queue
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.profiler import profile

from stage_worker.model_stage import ModelStage, load_stage
from stage_worker.orders import Entry, Microbatch
from tests.pipeline_of_stages import PipelineOfStages, Work, decode_work, sampling_row
from tests.random_ids import make_prompt
from tests.reference import Reference

PROMPT_TOKENS = 2048
PAGE_TOKENS = 64
DECODE_STEPS = 8
BATCHES = (1, 2, 4)
CONTEXTS = (512, 2048)
PAGES_PER_ROW = 40


@dataclasses.dataclass(slots=True)
class Timing:
    """Repetitions of one measurement."""

    wall_s: list[float] = dataclasses.field(default_factory=list)
    cpu_s: list[float] = dataclasses.field(default_factory=list)

    def take(self, action: Callable[[], None]) -> None:
        """Run once more."""
        cpu, wall = time.process_time(), time.perf_counter()
        action()
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.process_time() - cpu)

    def summary(self, amount: float) -> dict[str, float]:
        """Return seconds per unit of amount, and units per second."""
        return {
            "median_s": statistics.median(self.wall_s) / amount,
            "best_s": min(self.wall_s) / amount,
            "best_cpu_s": min(self.cpu_s) / amount,
            "median_per_s": amount / statistics.median(self.wall_s),
            "best_per_s": amount / min(self.wall_s),
        }


class Bench:
    """Holds the models and one long prompt."""

    def __init__(self, model_path: pathlib.Path) -> None:
        self.reference = Reference(model_path, attention="sdpa")
        config = self.reference.model.config
        middle = config.num_hidden_layers // 2
        self.prompt = make_prompt(PROMPT_TOKENS, seed=1, vocab_size=config.vocab_size)
        self.whole = load_stage(model_path, layers=range(config.num_hidden_layers))
        self.first = load_stage(model_path, layers=range(middle))
        self.last = load_stage(model_path, layers=range(middle, config.num_hidden_layers))
        num_pages = PAGES_PER_ROW * max(BATCHES)
        self.alone = PipelineOfStages([self.whole], num_pages=num_pages, page_tokens=PAGE_TOKENS)
        self.halves = PipelineOfStages(
            [self.first, self.last], num_pages=num_pages, page_tokens=PAGE_TOKENS
        )

    def reference_prefill(self, num_threads: int) -> None:
        """Transformers over the whole prompt at once."""
        torch.set_num_threads(num_threads)
        self.reference.logits(self.prompt)
        torch.set_num_threads(1)

    def prefill(self, num_threads: int, chunk_tokens: int) -> None:
        """One stage with all layers."""
        torch.set_num_threads(num_threads)
        for start in range(0, PROMPT_TOKENS, chunk_tokens):
            self.alone.run(self._chunk(0, start, chunk_tokens, PROMPT_TOKENS))
        torch.set_num_threads(1)
        self.whole.release(0)

    def prefill_half(self, chunk_tokens: int) -> None:
        """Only the first half of the layers, one thread."""
        out = torch.empty(chunk_tokens, self.first.description.hidden_size)
        for start in range(0, PROMPT_TOKENS, chunk_tokens):
            self.first.forward(self._microbatch(start, chunk_tokens), None, out)
        self.first.release(0)

    def prefill_pipelined(self, chunk_tokens: int) -> None:
        """Both halves at the same time, each in a thread with one torch thread."""
        activations: queue.Queue[tuple[Microbatch, torch.Tensor]] = queue.Queue()
        num_chunks = -(-PROMPT_TOKENS // chunk_tokens)
        follower = threading.Thread(
            target=_follow, args=(self.last, activations, num_chunks), daemon=True
        )
        follower.start()
        for start in range(0, PROMPT_TOKENS, chunk_tokens):
            out = torch.empty(chunk_tokens, self.first.description.hidden_size)
            microbatch = self._microbatch(start, chunk_tokens)
            self.first.forward(microbatch, None, out)
            activations.put((microbatch, out))
        follower.join()
        self.first.release(0)
        self.last.release(0)

    def fill_rows(self, pipeline: PipelineOfStages, context: int) -> None:
        """Prefill the rows of the largest batch."""
        for row in range(max(BATCHES)):
            for stage in pipeline.stages:
                stage.release(row)
            for start in range(0, context, 256):
                pipeline.run(self._chunk(row, start, 256, context))

    def _chunk(self, row: int, start: int, chunk_tokens: int, end: int) -> Work:
        first_page = row * PAGES_PER_ROW
        ids = tuple(self.prompt[start : start + chunk_tokens])
        return Work(
            row=row,
            start=start,
            token_ids=ids,
            new_page_ids=() if start else tuple(range(first_page, first_page + PAGES_PER_ROW)),
            sampling=sampling_row() if start + len(ids) == end else None,
        )

    def _microbatch(self, start: int, chunk_tokens: int) -> Microbatch:
        ids = np.array(self.prompt[start : start + chunk_tokens], dtype=np.uint32)
        pages = () if start else tuple(range(PAGES_PER_ROW))
        entry = Entry(row=0, start=start, num_tokens=len(ids), new_page_ids=pages)
        last = start + len(ids) == PROMPT_TOKENS
        sampling = (sampling_row(),) if last else ()
        return Microbatch(epoch=1, seq_no=0, entries=(entry,), token_ids=ids, sampling=sampling)


def _follow(
    stage: ModelStage, activations: queue.Queue[tuple[Microbatch, torch.Tensor]], num_chunks: int
) -> None:
    torch.set_num_threads(1)
    for _ in range(num_chunks):
        microbatch, hidden = activations.get()
        stage.forward(microbatch, hidden, None)


def measure_prefill(bench: Bench, pairs: int, only: str) -> dict[str, Timing]:
    """Return seconds for the whole prompt, by variant whose name contains only."""
    actions: dict[str, Callable[[], None]] = {
        "transformers sdpa, 2 threads": lambda: bench.reference_prefill(2),
        "transformers sdpa, 1 thread": lambda: bench.reference_prefill(1),
        "one stage, 1 thread, chunk 256": lambda: bench.prefill(1, 256),
        "one stage, 2 threads, chunk 256": lambda: bench.prefill(2, 256),
        "half stage, 1 thread, chunk 256": lambda: bench.prefill_half(256),
        "pipelined halves, chunk 128": lambda: bench.prefill_pipelined(128),
        "pipelined halves, chunk 256": lambda: bench.prefill_pipelined(256),
        "pipelined halves, chunk 512": lambda: bench.prefill_pipelined(512),
    }
    timings = {name: Timing() for name in actions if only in name}
    for _ in range(pairs):
        for name, timing in timings.items():
            timing.take(actions[name])
            print(f"{name}: {PROMPT_TOKENS / timing.wall_s[-1]:.0f} tok/s", flush=True)
    return timings


def measure_decode(bench: Bench, pairs: int, context: int) -> dict[str, Timing]:
    """Return seconds for DECODE_STEPS steps after a context, by variant."""
    pipelines = {"one stage": bench.alone, "two halves in turn": bench.halves}
    timings = {f"{name}, batch {batch}": Timing() for name in pipelines for batch in BATCHES} | {
        "transformers sdpa, 2 threads, batch 1": Timing()
    }
    for pipeline in pipelines.values():
        bench.fill_rows(pipeline, context)
    prompt = bench.prompt[:context]
    for _ in range(pairs):
        for name, pipeline in pipelines.items():
            for batch in BATCHES:
                action = functools.partial(_decode, pipeline, batch, context)
                timings[f"{name}, batch {batch}"].take(action)
        timings["transformers sdpa, 2 threads, batch 1"].wall_s.append(
            _reference_decode_s(bench.reference, prompt)
        )
    timings["transformers sdpa, 2 threads, batch 1"].cpu_s.append(float("nan"))
    return timings


def _decode(pipeline: PipelineOfStages, batch: int, context: int) -> None:
    for step in range(DECODE_STEPS):
        pipeline.run(*(decode_work(row, context + step, 5) for row in range(batch)))


def _reference_decode_s(reference: Reference, prompt: list[int]) -> float:
    """Return the seconds of DECODE_STEPS steps with a KV cache, prefill left out."""
    torch.set_num_threads(2)
    stamps = reference.token_stamps(prompt, 1 + DECODE_STEPS)
    torch.set_num_threads(1)
    return stamps[-1] - stamps[0]


def print_table(title: str, timings: dict[str, Timing], amount: float) -> None:
    """Print one line a variant."""
    print(f"\n{title}")
    for name, timing in timings.items():
        row = timing.summary(amount)
        print(
            f"  {name:40} {row['median_per_s']:8.1f} /s median {row['best_per_s']:8.1f} /s best"
            f" {row['median_s'] * 1e3:9.2f} ms median {row['best_cpu_s'] * 1e3:9.2f} ms cpu"
        )


def print_breakdown(bench: Bench) -> None:
    """Print where one chunk and one decode step spend their time."""
    bench.fill_rows(bench.alone, 512)
    chunk = bench._chunk(0, 512, 256, PROMPT_TOKENS)
    chunk = dataclasses.replace(chunk, new_page_ids=())
    for title, work in (("chunk of 256", chunk), ("decode step", decode_work(0, 512, 5))):
        with profile() as profiler:
            bench.alone.run(work)
        print(f"\n{title} after 512 tokens, all layers, by torch call")
        print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))


def main() -> None:
    """Measure and print; optionally write the raw figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_path", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", default="", help="prefill variants whose name contains this")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    print(f"load average at start {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    bench = Bench(arguments.model_path)
    print_breakdown(bench)
    results = {
        "prefill tok": (measure_prefill(bench, arguments.pairs, arguments.only), PROMPT_TOKENS)
    }
    for context in CONTEXTS:
        title = f"decode step after {context}"
        results[title] = (measure_decode(bench, arguments.pairs, context), DECODE_STEPS)
    for title, (timings, amount) in results.items():
        print_table(title, timings, amount)
    print(f"load average at end {os.getloadavg()[0]:.1f}")
    if arguments.json:
        raw = {
            title: {name: timing.wall_s for name, timing in timings.items()}
            for title, (timings, _) in results.items()
        }
        arguments.json.write_text(json.dumps(raw))


if __name__ == "__main__":
    main()
