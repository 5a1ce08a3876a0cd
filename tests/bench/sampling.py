"""Measures what choosing tokens costs, for many rows of one microbatch.

Run: python -m tests.bench.sampling [--rows 32] [--vocab 49152] [--dtype float32] [--rounds 20]
Settings are interleaved, so that load from elsewhere hits all alike; one torch thread. Beside them
stands the head's matrix product for as many rows, without which no token is chosen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from chunkmesh.token_counts import count_tokens
from stage_worker.orders import Penalties, SamplingRow
from stage_worker.sampler import Sampler
from stage_worker.token_logprobs import token_logprobs
from tests.pipeline_of_stages import sampling_row

HIDDEN = 576
SEEN_TOKENS = 2000
PROMPT_ROWS = 256


def variants(vocab_size: int) -> dict[str, SamplingRow]:
    """Return one sampling row of each kind."""
    drawn = {"seed": 5, "temperature": 0.8}
    ids = np.arange(SEEN_TOKENS, dtype=np.uint32) % vocab_size
    penalties = Penalties(frequency=0.1, presence=0.1, repetition=1.1, seen=count_tokens(ids))
    return {
        "greedy": sampling_row(),
        "greedy, 5 log-probabilities": sampling_row(top_logprobs=5),
        "greedy, penalties": sampling_row(penalties=penalties),
        "temperature": sampling_row(**drawn),
        "temperature, min_p": sampling_row(min_p=0.05, **drawn),
        "temperature, top_k 50": sampling_row(top_k=50, **drawn),
        "temperature, top_p 0.9": sampling_row(top_p=0.9, **drawn),
        "temperature, top_k 50, top_p 0.9": sampling_row(top_k=50, top_p=0.9, **drawn),
    }


def actions(arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return what is measured, by name."""
    torch.manual_seed(1)
    dtype: torch.dtype = getattr(torch, arguments.dtype)
    hidden_nD = torch.randn(arguments.rows, HIDDEN).to(dtype)
    head_DV = torch.randn(HIDDEN, arguments.vocab).to(dtype)
    logits_nV = (4 * torch.randn(arguments.rows, arguments.vocab)).to(dtype)
    prompt_nV = (4 * torch.randn(PROMPT_ROWS, arguments.vocab)).to(dtype)
    places = range(arguments.rows)
    sampler = Sampler()

    def choose(row: SamplingRow) -> Callable[[], object]:
        return lambda: sampler.sample([row] * arguments.rows, logits_nV, places)

    found = {name: choose(row) for name, row in variants(arguments.vocab).items()}
    found["(the head's product)"] = lambda: hidden_nD @ head_DV
    targets = np.arange(PROMPT_ROWS)
    found[f"({PROMPT_ROWS} prompt log-probabilities)"] = lambda: token_logprobs(
        prompt_nV, targets, 5
    )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = actions(arguments)
    times_s: dict[str, list[float]] = {name: [] for name in measured}
    with torch.inference_mode():
        for _ in range(arguments.rounds):
            for name, action in measured.items():
                started_s = time.perf_counter()
                action()
                times_s[name].append(time.perf_counter() - started_s)
    print(f"{arguments.rows} rows, vocabulary {arguments.vocab}, {arguments.dtype}: ms per step")
    for name, taken_s in times_s.items():
        median_ms, best_ms = statistics.median(taken_s) * 1e3, min(taken_s) * 1e3
        print(f"  {name:36} {median_ms:9.2f} median {best_ms:9.2f} best")


if __name__ == "__main__":
    main()
