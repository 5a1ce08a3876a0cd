"""A stage with eight-bit weights compiles nothing once it is ready, whatever comes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from stage_worker.device_start import DeviceLimits, DeviceStart
from stage_worker.kernels.availability import BLOCK_GEMM, why_not
from stage_worker.orders import Entry, Microbatch
from stage_worker.paged.load import load_paged_stage
from stage_worker.paged.stage import PagedStage
from stage_worker.weight_choice import WeightChoice
from tests.bench.shape_folder import write_shape

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
SIZES = (1, 3, 65, 200, 333, 449, 512, 700, 1536 + 77, 2049, 3584, 5000, 8192, 8448)
"""Chunks that are planned, ends of prompts, and chunks with decode rows beside them."""
COMPILE_S = 1.0
"""Less than any kernel takes to compile; FlashAttention-4 keeps none on disk."""
FOLDER = Path(os.environ.get("DG_JIT_CACHE_DIR", Path.home() / ".deep_gemm"))


def num_compiled() -> int:
    """Return how many kernels DeepGEMM has kept."""
    return len(list(FOLDER.rglob("*.cubin")))


def run(stage: PagedStage, num_tokens: int) -> None:
    """Run a chunk on a middle stage, and wait for it."""
    about = stage.description
    hidden_TD = torch.zeros(num_tokens, about.hidden_size, dtype=about.dtype, device=about.device)
    pages = tuple(range(-(-num_tokens // 128)))
    entry = Entry(row=0, start=0, num_tokens=num_tokens, new_page_ids=pages)
    microbatch = Microbatch(epoch=0, seq_no=0, entries=(entry,), token_ids=None, sampling=())
    stage.forward(microbatch, hidden_TD, torch.empty_like(hidden_TD))
    stage.release(0)


@pytest.mark.parametrize("shape", ["qwen3-8b", "qwen3-30b-a3b", "deepseek-v3-cut"])
def test_nothing_is_compiled_behind_the_warm_up(
    shape: str, gpu: torch.device, tmp_path: Path
) -> None:
    """A first kernel takes seconds, in which a whole pipeline would stand still."""
    reason = why_not(BLOCK_GEMM, gpu)
    if reason is not None:
        pytest.skip(reason)
    write_shape(tmp_path, shape)
    choice = WeightChoice(load_format="dummy", quantization="fp8")
    stage = load_paged_stage(tmp_path, layers=range(1, 2), device=gpu, choice=choice)
    limits = DeviceLimits(
        warmup_mode="parallel", cuda_graph_max_bs=64, mem_fraction=0.5, max_total_tokens=None
    )
    before, begun_s = num_compiled(), time.monotonic()
    DeviceStart(limits, stage, tmp_path).prepare()
    warm, warm_s = num_compiled(), time.monotonic() - begun_s
    print(f"{shape}: {warm - before} kernels of DeepGEMM compiled, warm after {warm_s:.1f} s")
    stage.allocate(num_pages=128, page_tokens=128)
    slow = {}
    for num_tokens in SIZES:
        begun_s = time.monotonic()
        run(stage, num_tokens)
        slow[num_tokens] = time.monotonic() - begun_s
    print(
        f"{shape}: first runs took at most {max(slow.values()):.2f} s, new {num_compiled() - warm}"
    )
    assert 0 < num_compiled() == warm, slow
    assert max(slow.values()) < COMPILE_S, slow
