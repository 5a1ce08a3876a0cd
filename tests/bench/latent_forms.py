"""Measures both forms of latent attention in one layer with the widths of DeepSeek-V3.

Run: python -m tests.bench.latent_forms [--rounds 7] [--threads 1] [--chunks 256 1024]
Fewer heads and a narrower hidden state than the real one, so that it fits a small machine; each
head computes what a real one does. Weights are random. The layer is not the model's last one, so
every row attends. Both forms take turns, so that load from elsewhere hits both alike.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch

from stage_worker.latent_config import LatentConfig, parse_latent
from stage_worker.latent_form import absorbed_cost, expanded_cost
from stage_worker.model_stage import ModelStage, load_stage
from stage_worker.orders import Entry, Microbatch
from stage_worker.weight_choice import DUMMY
from tests.bench import machine
from tests.bench.measure import cell, interleave, pair_ratios, table

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_attention_heads": 16,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 16384,
}
PAGE_TOKENS = 64
PREFIXES = (0, 2048, 8192)
FILL_TOKENS = 1024


class Layer:
    """One layer whose pool holds the longest prefix, in one run of pages."""

    def __init__(self, num_tokens: int, num_threads: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(CONFIG))
            self._stage: ModelStage = load_stage(
                pathlib.Path(folder),
                layers=range(1),
                num_threads=num_threads,
                choice=DUMMY,
            )
        self._num_pages = -(-num_tokens // PAGE_TOKENS)
        self._ids = np.random.default_rng(1).integers(0, 264, num_tokens, dtype=np.uint32)
        self._stage.allocate(num_pages=self._num_pages, page_tokens=PAGE_TOKENS)
        for start in range(0, num_tokens, FILL_TOKENS):
            self.run(start, min(FILL_TOKENS, num_tokens - start))

    def run(self, start: int, num_tokens: int) -> float:
        """Run one chunk behind a cached prefix; return the milliseconds of CPU time it took."""
        pages = tuple(range(self._num_pages))
        entry = Entry(row=0, start=start, num_tokens=num_tokens, new_page_ids=pages)
        ids = self._ids[start : start + num_tokens]
        order = Microbatch(epoch=1, seq_no=0, entries=(entry,), token_ids=ids, sampling=())
        out_TD = torch.empty(num_tokens, CONFIG["hidden_size"])
        begin = time.process_time()
        self._stage.forward(order, None, out_TD)
        taken_s = time.process_time() - begin
        self._stage.release(0)
        return taken_s * 1e3


def _forced(layer: Layer, start: int, num_tokens: int, *, expanded: bool) -> Callable[[], float]:
    def run() -> float:
        with mock.patch("stage_worker.step.is_expanded", return_value=expanded):
            return layer.run(start, num_tokens)

    return run


def compare(layer: Layer, latent: LatentConfig, chunks: list[int], rounds: int) -> str:
    """Return a table of both forms; arithmetic is that of attention alone, measured the layer."""
    rows = []
    for num_rows in chunks:
        for prefix in PREFIXES:
            work = {
                "absorbed": _forced(layer, prefix, num_rows, expanded=False),
                "expanded": _forced(layer, prefix, num_rows, expanded=True),
            }
            interleave(1, work, unit="ms")
            taken = interleave(rounds, work, unit="ms")
            absorbed, expanded = taken["absorbed"], taken["expanded"]
            costs = [form(latent, num_rows, prefix) for form in (absorbed_cost, expanded_cost)]
            gain = cell(pair_ratios(absorbed, expanded))
            numbers = (str(num_rows), str(prefix), cell(absorbed), cell(expanded), gain)
            rows.append((*numbers, f"{costs[0] / costs[1]:.2f} x"))
    header = ("chunk", "prefix", "absorbed", "expanded", "measured gain", "by arithmetic")
    return table("Latent attention: absorbed against expanded", header, rows)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.latent_forms")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 128, 192, 256, 1024])
    options = parser.parse_args()
    latent = parse_latent(CONFIG, present=True)
    assert latent is not None, "the config has latents"
    layer = Layer(max(PREFIXES) + max(options.chunks), options.threads)
    print(f"{machine.describe()}\n{machine.calibrate()}\n", flush=True)
    print(compare(layer, latent, options.chunks, options.rounds))
    print(machine.calibrate())


if __name__ == "__main__":
    main()
