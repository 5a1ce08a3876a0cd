"""Decode steps as CUDA graphs, greedy ids chosen on the GPU, and the start of a stage there."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from stage_worker.device_start import DeviceLimits, DeviceStart
from stage_worker.launched import Launched
from stage_worker.orders import Entry, Microbatch
from stage_worker.paged.decode_graphs import CudaRecorder
from stage_worker.paged.greedy import ChosenIds, likeliest_ids
from stage_worker.paged.load import load_paged_stage
from stage_worker.paged.stage import PagedStage
from stage_worker.sampler import Sampler
from stage_worker.stage import StageOutput
from tests.narrow_models import make_narrow_without_choice
from tests.pipeline_of_stages import PipelineOfStages, Work, decode_work, sampling_row
from tests.random_ids import make_prompt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MOST_ROWS = 24
SIZES = (1, 2, 4, 8, 16, 24)
PAGE_TOKENS = 64
ROW_PAGES = 8
NUM_PAGES = (MOST_ROWS + 3) * ROW_PAGES
LENGTHS = (1, 62, 63, 64, 65, 126, 127, 128, 129, 255, 256, 300)
"""Of prompts: before, at and behind borders of pages and of what a split of keys holds."""
NEAR = 0.1
"""Between log-probabilities of steps of other sizes: products of other shapes round otherwise."""
SHAPES: dict[str, dict[str, Any]] = {
    "Llama": {"hidden_size": 256, "intermediate_size": 512},
    "Qwen3": {"hidden_size": 256, "intermediate_size": 512, "head_dim": 128},
    "Qwen3Moe": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "head_dim": 128,
        "moe_intermediate_size": 128,
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Write models whose heads the kernels take."""
    path = tmp_path_factory.mktemp(f"graphs_{request.param}")
    make_narrow_without_choice(path, request.param, "bfloat16", **SHAPES[request.param])
    return path


@pytest.fixture(autouse=True)
def clean(gpu: torch.device) -> Iterator[None]:
    """Give memory back, and let a broken kernel be seen in its own test."""
    yield
    torch.cuda.synchronize(gpu)
    torch.cuda.empty_cache()


def load(model: pathlib.Path, gpu: torch.device, *, replays: bool) -> PipelineOfStages:
    """Load two stages onto one GPU."""
    stages = []
    for layers in (range(2), range(2, 4)):
        stage = load_paged_stage(model, layers=layers, device=gpu)
        if replays:
            stage.use_replays(MOST_ROWS, CudaRecorder(gpu))
            assert stage.description.backends[-1].reason == ""
        stages.append(stage)
    return PipelineOfStages(stages, num_pages=NUM_PAGES, page_tokens=PAGE_TOKENS)


def pages_of(row: int) -> tuple[int, ...]:
    """Return all pages of a request, not in their order."""
    return tuple(reversed(range(row * ROW_PAGES, (row + 1) * ROW_PAGES)))


class Conversation:
    """Random decode steps of many requests; the tokens are drawn, so all pipelines get the same."""

    def __init__(self, seed: int, sizes: Sequence[int]) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - a test
        self._sizes = sizes
        self._lengths = [LENGTHS[row % len(LENGTHS)] for row in range(MOST_ROWS + 2)]

    def prompts(self) -> Iterator[tuple[Work, ...]]:
        """Yield a microbatch for each prompt."""
        for row, length in enumerate(self._lengths):
            yield (
                Work(
                    row=row,
                    start=0,
                    token_ids=tuple(make_prompt(length, seed=row)),
                    new_page_ids=pages_of(row),
                    sampling=sampling_row(),
                ),
            )

    def steps(self, num_steps: int, *, chunks: bool) -> Iterator[tuple[Work, ...]]:
        """Yield decode microbatches, some with and some behind a chunk."""
        sampling = sampling_row(top_logprobs=8)
        for step in range(num_steps):
            size = self._sizes[step % len(self._sizes)]
            rows = self._dice.sample(range(len(self._lengths)), size)
            works = [
                dataclasses.replace(
                    decode_work(row, self._lengths[row], self._dice.randrange(64)),
                    sampling=sampling if step % 2 else sampling_row(),
                )
                for row in rows
            ]
            if chunks and step % 3 == 2:
                works.append(self._chunk(100 + step))
            yield tuple(works)
            for row in rows:
                self._lengths[row] += 1

    def _chunk(self, row: int) -> Work:
        """Return a prompt of a request that is not seen again, on pages that nobody has."""
        return Work(
            row=row,
            start=0,
            token_ids=tuple(make_prompt(350 + row, seed=row)),
            new_page_ids=pages_of(MOST_ROWS + 2),
            sampling=sampling_row(),
        )


def outputs(
    pipeline: PipelineOfStages, sizes: Sequence[int], num_steps: int, *, chunks: bool
) -> list[StageOutput]:
    """Run a conversation and return what its steps said."""
    conversation = Conversation(3, sizes)
    for works in conversation.prompts():
        pipeline.run(*works)
    return [pipeline.output(*works) for works in conversation.steps(num_steps, chunks=chunks)]


def test_replayed_steps_are_the_launched_ones(model: pathlib.Path, gpu: torch.device) -> None:
    """Without filler they are the same kernels on the same numbers: not one bit is lost."""
    expected = outputs(load(model, gpu, replays=False), SIZES, 24, chunks=False)
    actual = outputs(load(model, gpu, replays=True), SIZES, 24, chunks=False)
    assert [each.sampled_ids for each in expected] == [each.sampled_ids for each in actual]
    for one, other in zip(expected, actual, strict=True):
        for first, second in zip(one.sampled_logprobs, other.sampled_logprobs, strict=True):
            assert np.array_equal(first.top_logprobs_Tk, second.top_logprobs_Tk)


def test_filler_and_chunks_between_change_nothing(model: pathlib.Path, gpu: torch.device) -> None:
    """Sizes between two of the ladder, and microbatches that make scratch memory grow and move."""
    sizes = (3, 1, 5, 7, 24, 9, 25, 17, 2)
    expected = outputs(load(model, gpu, replays=False), sizes, 27, chunks=True)
    actual = outputs(load(model, gpu, replays=True), sizes, 27, chunks=True)
    compared = 0
    for one, other in zip(expected, actual, strict=True):
        for first, second in zip(one.sampled_logprobs, other.sampled_logprobs, strict=True):
            difference = np.abs(first.top_logprobs_Tk - second.top_logprobs_Tk).max()
            assert difference < NEAR
            compared += 1
    assert compared > 50


def launched_ids(stage: PagedStage, gpu: torch.device, *, ahead: int) -> list[tuple[int, ...]]:
    """Launch 20 steps of 5 rows, each before the one `ahead` before it is waited for."""
    stage.allocate(num_pages=NUM_PAGES, page_tokens=PAGE_TOKENS)
    dice = random.Random(7)  # noqa: S311 - a test
    pipeline = PipelineOfStages([stage], num_pages=NUM_PAGES, page_tokens=PAGE_TOKENS)
    for row in range(5):
        prompt = tuple(make_prompt(60 + row, seed=row))
        work = Work(
            row=row, start=0, token_ids=prompt, new_page_ids=pages_of(row), sampling=sampling_row()
        )
        pipeline.run(work)
    waiting: list[Launched] = []
    ids = []
    for step in range(20):
        rows = dice.sample(range(5), 5)
        microbatch = Microbatch(
            epoch=1,
            seq_no=step,
            entries=tuple(
                Entry(row=row, start=60 + row + step, num_tokens=1, new_page_ids=()) for row in rows
            ),
            token_ids=np.array([dice.randrange(64) for _ in rows], dtype=np.uint32),
            sampling=tuple(
                dataclasses.replace(sampling_row(), entry=index, row=row)
                for index, row in enumerate(rows)
            ),
        )
        waiting.append(stage.launch(microbatch, None, None))
        if len(waiting) > ahead:
            ids.append(waiting.pop(0).wait().output.sampled_ids)
    ids += [each.wait().output.sampled_ids for each in waiting]
    for row in range(5):
        stage.release(row)
    torch.cuda.synchronize(gpu)
    return ids


def test_steps_launched_ahead_keep_their_inputs(model: pathlib.Path, gpu: torch.device) -> None:
    """The numbers of the next step are sent while the one before is read, and must not reach it."""
    stage = load_paged_stage(model, layers=range(4), device=gpu)
    stage.use_replays(MOST_ROWS, CudaRecorder(gpu))
    expected = launched_ids(stage, gpu, ahead=0)
    assert len(expected) == 20
    for ahead in (1, 2, 19):
        assert launched_ids(stage, gpu, ahead=ahead) == expected


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_greedy_microbatches_are_not_waited_for(model: pathlib.Path, gpu: torch.device) -> None:
    """Nothing in the launch of a step waits for the GPU: such calls fail inside."""
    stage = load_paged_stage(model, layers=range(4), device=gpu)
    for replays in (False, True):
        if replays:
            stage.use_replays(MOST_ROWS, CudaRecorder(gpu))
        expected = launched_ids(stage, gpu, ahead=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage, "launch", _without_waiting(stage.launch))
            assert launched_ids(stage, gpu, ahead=1) == expected


def _without_waiting(launch: Any) -> Any:
    def launch_watched(*arguments: Any) -> Any:
        if any(entry.num_tokens > 1 for entry in arguments[0].entries):
            return launch(*arguments)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return launch_watched


def test_new_pools_take_no_more_memory(model: pathlib.Path, gpu: torch.device) -> None:
    """Each epoch may have another pool; what was recorded for the last one is given back."""
    stage = load_paged_stage(model, layers=range(4), device=gpu)
    stage.use_replays(MOST_ROWS, CudaRecorder(gpu))
    used = []
    for turn in range(6):
        stage.allocate(num_pages=NUM_PAGES + turn, page_tokens=PAGE_TOKENS)
        torch.cuda.synchronize(gpu)
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved(gpu))
    assert used[-1] - used[1] < 32 << 20


@pytest.mark.parametrize(
    ("family", "dtype", "reason"),
    [
        ("Mistral", "bfloat16", "attention of limited reach counts keys on the host"),
        ("Llama", "float32", "decode attention in plain torch counts keys on the host"),
    ],
)
def test_what_cannot_be_replayed_is_launched(
    family: str, dtype: Any, reason: str, gpu: torch.device, tmp_path: pathlib.Path
) -> None:
    """Such a stage says why, and answers."""
    changes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    make_narrow_without_choice(tmp_path, family, "bfloat16", **changes)
    stage = load_paged_stage(tmp_path, layers=range(4), device=gpu, dtype=dtype)
    stage.use_replays(MOST_ROWS, CudaRecorder(gpu))
    told = stage.description.backends[-1]
    assert (told.name, told.reason) == ("one by one", reason)
    pipeline = PipelineOfStages([stage], num_pages=8, page_tokens=PAGE_TOKENS)
    assert len(pipeline.generate(make_prompt(70, seed=1), 4)) == 4


def test_greedy_ids_are_the_samplers(gpu: torch.device) -> None:
    """Ties go to the lowest id whatever order a GPU looks in; broken rows are told."""
    logits_nV = torch.randn(40, 151936, generator=torch.Generator().manual_seed(1))
    logits_nV = (logits_nV * 4).round() / 4  # many ties
    logits_nV[1, 7], logits_nV[2, 9], logits_nV[3] = math.nan, math.inf, -math.inf
    rows = [dataclasses.replace(sampling_row(), entry=row, row=row) for row in range(40)]
    expected = Sampler().sample(rows, logits_nV, range(40))
    pending = ChosenIds(likeliest_ids(logits_nV.to(gpu)), range(40))
    torch.cuda.synchronize(gpu)
    assert pending.output() == StageOutput(
        sampled_ids=expected.ids, without_choice=expected.without_choice
    )


@pytest.mark.parametrize("mode", ["parallel", "serial", "off"])
def test_start_of_a_stage(
    model: pathlib.Path, mode: Any, gpu: torch.device, tmp_path: pathlib.Path
) -> None:
    """It is warm, knows its memory and what launches its steps, and then serves."""
    free_bytes, _ = torch.cuda.mem_get_info(gpu)
    stage = load_paged_stage(model, layers=range(4), device=gpu)
    limits = DeviceLimits(
        warmup_mode=mode, cuda_graph_max_bs=MOST_ROWS, mem_fraction=0.5, max_total_tokens=None
    )
    start = DeviceStart(limits, stage, tmp_path)
    assert (start.readiness() is None) == (mode == "off")
    tokens = start.prepare()
    assert start.readiness() is None
    assert stage.description.backends[-1].name == f"CUDA graphs up to {MOST_ROWS} rows"
    pool_bytes = tokens * stage.description.kv_bytes_per_token
    assert 0.3 * free_bytes < pool_bytes <= 0.5 * free_bytes
    pipeline = PipelineOfStages([stage], num_pages=64, page_tokens=128)
    assert len(pipeline.generate(make_prompt(200, seed=1), 4)) == 4
