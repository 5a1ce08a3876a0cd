"""Time between tokens on one stage, with decode steps as CUDA graphs and launched one by one.

A whole model with random weights decodes behind long prefixes, each step waited for, as a request
waits for its token. Nothing else of ChunkMesh takes part: no scheduler, no wire. Where the prefixes
of a batch do not fit in memory together, rows read the same pages, but not at the same moment: each
begins at another page, and one layer's pages are many times what caches hold.
Run: python -m tests.bench.gpu_decode [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from stage_worker.orders import Entry, Microbatch, SamplingRow
from stage_worker.paged.decode_graphs import CudaRecorder
from stage_worker.paged.load import load_paged_stage
from stage_worker.paged.stage import PagedStage
from stage_worker.weight_choice import DUMMY
from tests.bench import machine
from tests.bench.shape_folder import SHAPES, write_shape

PAGE_TOKENS = 128
NUM_UNTIMED = 3
KEPT_BYTES = 8 << 30
"""Left free beside the pool."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one case, in ms: medians, and the fastest and slowest step."""

    launches: str
    batch: int
    prefix_tokens: int
    step_ms: float
    """From the beginning of a launch until its ids are on the host."""
    fastest_ms: float
    slowest_ms: float
    host_ms: float
    """How long a launch keeps the compute thread busy."""
    device_ms: float
    num_steps: int
    shares_pages: bool


class Decoding:
    """Decodes a batch of rows behind prefixes of one length."""

    def __init__(self, stage: PagedStage, num_pages: int, batch: int, prefix_tokens: int) -> None:
        self._stage = stage
        self._num_pages = num_pages
        self._batch = batch
        self._prefix_tokens = prefix_tokens
        self._ids: Sequence[int] = [1] * batch

    def figures(self, num_steps: int, launches: str) -> Figures:
        """Run the steps, and some untimed ones before."""
        steps_ms, hosts_ms, devices_ms = [], [], []
        for step in range(num_steps + NUM_UNTIMED):
            microbatch = self._microbatch(step)
            begun_s = time.perf_counter()
            launched = self._stage.launch(microbatch, None, None)
            host_s = time.perf_counter() - begun_s
            finished = launched.wait()
            steps_ms.append((time.perf_counter() - begun_s) * 1e3)
            hosts_ms.append(host_s * 1e3)
            devices_ms.append((finished.ended_s - finished.started_s) * 1e3)
            self._ids = finished.output.sampled_ids
        for row in range(self._batch):
            self._stage.release(row)
        timed_ms = steps_ms[NUM_UNTIMED:]
        return Figures(
            launches=launches,
            batch=self._batch,
            prefix_tokens=self._prefix_tokens,
            step_ms=statistics.median(timed_ms),
            fastest_ms=min(timed_ms),
            slowest_ms=max(timed_ms),
            host_ms=statistics.median(hosts_ms[NUM_UNTIMED:]),
            device_ms=statistics.median(devices_ms[NUM_UNTIMED:]),
            num_steps=num_steps,
            shares_pages=self._batch * self._row_pages > self._num_pages,
        )

    @property
    def _row_pages(self) -> int:
        return self._prefix_tokens // PAGE_TOKENS + 1

    def _microbatch(self, step: int) -> Microbatch:
        entries = tuple(
            Entry(
                row=row,
                start=self._prefix_tokens + step,
                num_tokens=1,
                new_page_ids=() if step else self._pages(row),
            )
            for row in range(self._batch)
        )
        return Microbatch(
            epoch=0,
            seq_no=step,
            entries=entries,
            token_ids=np.array(self._ids, dtype=np.uint32),
            sampling=tuple(SamplingRow.likeliest(row, row) for row in range(self._batch)),
        )

    def _pages(self, row: int) -> tuple[int, ...]:
        first = row * self._num_pages // self._batch
        return tuple((first + page) % self._num_pages for page in range(self._row_pages))


def measured(stage: PagedStage, arguments: argparse.Namespace) -> Iterator[Figures]:
    """Yield the figures of all cases, first launched one by one, then replayed."""
    num_pages = arguments.pages or _fitting_pages(stage, max(arguments.prefixes))
    for uses_graphs in (False, True):
        launches = "one by one"
        if uses_graphs:
            stage.use_replays(max(arguments.batches), CudaRecorder(torch.device("cuda", 0)))
            told = stage.description.backends[-1]
            launches = told.name
            if told.reason:
                print(f"no CUDA graphs: {told.reason}")
                return
        begun_s = time.perf_counter()
        stage.allocate(num_pages=num_pages, page_tokens=PAGE_TOKENS)
        print(f"{launches}: {num_pages} pages made in {time.perf_counter() - begun_s:.1f} s")
        for prefix_tokens in arguments.prefixes:
            for batch in arguments.batches:
                decoding = Decoding(stage, num_pages, batch, prefix_tokens)
                yield decoding.figures(arguments.steps, launches)


def _fitting_pages(stage: PagedStage, prefix_tokens: int) -> int:
    """Return how many pages fit; fewer than a prefix needs end the program."""
    free_bytes, _ = torch.cuda.mem_get_info()
    page_bytes = PAGE_TOKENS * stage.description.kv_bytes_per_token
    num_pages = (free_bytes - KEPT_BYTES) // page_bytes
    if num_pages * PAGE_TOKENS <= prefix_tokens:
        sys.exit(f"{num_pages} pages of {PAGE_TOKENS} tokens fit, {prefix_tokens} tokens do not")
    return num_pages


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_decode")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prefixes", type=int, nargs="+", default=[32768, 131072])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pages", type=int, help="of the pool; what fits if not given")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is visible")
    begun_s = time.perf_counter()
    device = torch.device("cuda", 0)
    print(torch.cuda.get_device_name(device), "torch", torch.__version__, machine.describe())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_shape(path, arguments.shape)
        num_layers = int(SHAPES[arguments.shape]["num_hidden_layers"])
        stage = load_paged_stage(path, layers=range(num_layers), device=device, choice=DUMMY)
    print(f"loaded in {time.perf_counter() - begun_s:.1f} s")
    rows = []
    print(f"{'launches':28}{'batch':>6}{'behind':>9}{'step':>9}{'fastest':>9}{'host':>9}{'GPU':>9}")
    for each in measured(stage, arguments):
        rows.append(dataclasses.asdict(each))
        mark = " *" if each.shares_pages else ""
        print(
            f"{each.launches:28}{each.batch:6}{each.prefix_tokens:9}{each.step_ms:9.2f}"
            f"{each.fastest_ms:9.2f}{each.host_ms:9.2f}{each.device_ms:9.2f}{mark}",
            flush=True,
        )
    print(f"ms, medians of {arguments.steps} steps; * rows share pages; all in "
          f"{time.perf_counter() - begun_s:.0f} s")  # fmt: skip
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
