"""What layers of models with experts cost on a GPU, as a stage makes them: prefill and decode.

One layer with random weights runs chunks of 4096 rows behind prefixes, and decode rows as one
graph. Keys and values are random; L2 is overwritten between calls; times are medians. No embedding,
head, sampling or mesh.
Run: python -m tests.bench.gpu_shapes [--shapes NAME ...] [--quantization auto|fp8] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from stage_worker.model_config import ModelConfig, read_model_config
from stage_worker.orders import Entry, Microbatch
from stage_worker.paged.decoder import run_layers
from stage_worker.paged.load import load_paged_stage
from stage_worker.paged.placed import Placed
from stage_worker.paged.plan import plan_pages
from stage_worker.paged.stage import PagedStage
from stage_worker.weight_choice import WeightChoice
from tests.bench import machine
from tests.bench.gpu_kernels import GPU, Table, timed
from tests.bench.layer_operations import layer_operations
from tests.bench.shape_folder import SHAPES, write_shape

CHUNK = 4096
PREFIXES = (0, 32768, 131072)
DECODES = ((1, 4096), (1, 32768), (1, 131072), (32, 4096), (32, 32768))
"""Rows, and the keys before each."""
PAGE = 128
LAYER = 1
"""Neither the first one of a model, which embeds, nor the last one, which samples."""


class Layer:
    """One layer of a stage, and the pages that it works on."""

    def __init__(self, path: Path, choice: WeightChoice) -> None:
        self.stage: PagedStage = load_paged_stage(
            path, layers=range(LAYER, LAYER + 1), device=GPU, choice=choice
        )
        about = self.stage.description
        self.backends = ", ".join(f"{each.operation}: {each.name}" for each in about.backends)

    @torch.no_grad()
    def time_ms(self, num_rows: int, num_tokens: int, prefix: int, *, graph: bool) -> float:
        """Return the median of one microbatch of equal entries."""
        pages = -(-(prefix + num_tokens) // PAGE)
        self.stage.allocate(num_pages=num_rows * pages, page_tokens=PAGE)
        pool = self.stage._owned_pool()
        for cache in pool.layers:
            cache.k_PNKd.normal_()
            cache.v_PNKd.normal_()
        placed = self._place(
            tuple(
                Entry(
                    row=row,
                    start=prefix,
                    num_tokens=num_tokens,
                    new_page_ids=tuple(range(row * pages, (row + 1) * pages)),
                )
                for row in range(num_rows)
            )
        )
        shape = (num_rows * num_tokens, self.stage.description.hidden_size)
        source_TD = torch.randn(shape, device=GPU, dtype=self.stage.description.dtype)
        hidden_TD = torch.empty_like(source_TD)

        def run() -> None:
            hidden_TD.copy_(source_TD)
            run_layers(self.stage._layers, pool.layers, hidden_TD, placed)

        return timed(run, graph=graph)

    def _place(self, entries: tuple[Entry, ...]) -> Placed:
        microbatch = Microbatch(epoch=0, seq_no=0, entries=entries, token_ids=None, sampling=())
        return self.stage._place(microbatch, plan_pages(microbatch, self.stage._tables))


def measure(layer: Layer, name: str, config: ModelConfig, table: Table) -> Iterator[None]:
    """Add one row after the other."""
    for prefix in PREFIXES:
        ms = layer.time_ms(1, CHUNK, prefix, graph=False)
        work = layer_operations(config, LAYER, CHUNK, prefix).all
        table.add(f"{name}, {CHUNK} rows after {prefix}", ms, computed=work)
        yield
    for num_rows, num_keys in DECODES:
        ms = layer.time_ms(num_rows, 1, num_keys, graph=True)
        table.add(f"{name}, decode, {num_rows} x {num_keys} keys", ms)
        yield


def main() -> None:
    """Print the tables and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_shapes")
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPES, default=["qwen3-30b-a3b", "deepseek-v3-cut"]
    )
    parser.add_argument("--quantization", choices=["auto", "fp8"], default="fp8")
    parser.add_argument("--limit-s", type=float, default=150.0, help="no row is begun behind it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    choice = WeightChoice(load_format="dummy", quantization=arguments.quantization)
    begun_s = time.monotonic()
    table = Table()
    print(torch.cuda.get_device_name(GPU), "torch", torch.__version__, machine.describe())
    for name in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            write_shape(Path(folder), name)
            layer = Layer(Path(folder), choice)
            config = read_model_config(Path(folder))
        print(f"{name}: {layer.backends}; loaded after {time.monotonic() - begun_s:.0f} s")
        for _ in measure(layer, name, config, table):
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(table.rows, indent=1))
            if time.monotonic() - begun_s > arguments.limit_s:
                print("the time limit is reached")
                return
        del layer
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
