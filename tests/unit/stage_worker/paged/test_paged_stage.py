"""The paged stage against the CPU's own: the same families, ids and logits, in float32."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
import torch

from stage_worker.element_type import DtypeChoice
from stage_worker.paged.load import load_paged_stage
from tests.exactness import Expected, check_same, copy_pages, recorded_logits
from tests.narrow_models import deviation
from tests.pipeline_of_stages import (
    PipelineOfStages,
    Work,
    decode_work,
    load_pipeline,
    sampling_row,
)
from tests.random_ids import make_prompt
from tests.reference import Answer
from tests.tiny_models import FAMILIES, make_tiny

CPU = torch.device("cpu")
NARROW_DEVIATION = 0.03
"""Of logits, see deviation(), that eight significant bits may cause; the CPU's own are alike."""


def load_paged(
    model_path: pathlib.Path, *borders: int, dtype: DtypeChoice = "auto"
) -> PipelineOfStages:
    """Load a model cut at borders onto the CPU, made of paged operations."""
    stages = [
        load_paged_stage(model_path, layers=range(first, last), device=CPU, dtype=dtype)
        for first, last in itertools.pairwise(borders)
    ]
    return PipelineOfStages(stages, num_pages=64, page_tokens=16)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What transformers answers with a family's tiny model; 61 tokens are more than any window."""
    path = tmp_path_factory.mktemp(request.param)
    make_tiny(path, request.param)
    return Expected(path, make_prompt(61, seed=5), 8)


def test_whole(family: Expected) -> None:
    """Every family is served by the paged operations, and right."""
    family.check(load_paged(family.model_path, 0, 4))


def test_split_and_chunked(family: Expected) -> None:
    """Neither borders of stages nor of chunks, which are not those of pages, change an answer."""
    family.check(load_paged(family.model_path, 0, 1, 4), chunk_tokens=23)


def test_pages_are_those_of_the_cpu(family: Expected) -> None:
    """A page stored by a worker of one kind is loaded by one of the other."""
    pages = range(4)
    for first, second in (
        (load_paged(family.model_path, 0, 4), load_pipeline(family.model_path, (0, 4))),
        (load_pipeline(family.model_path, (0, 4)), load_paged(family.model_path, 0, 2, 4)),
    ):
        first.generate(family.prompt, 1)
        copy_pages(first, second, pages)
        with recorded_logits() as rows:
            ids = second.generate(family.prompt, 8, first_position=48)
        check_same(family.answer, Answer(ids=tuple(ids), logits_nV=torch.cat(rows)))


def test_chunks_and_decode_rows_share_a_microbatch(family: Expected) -> None:
    """Rows of both kinds, in any order, answer as they do alone."""
    expected = load_pipeline(family.model_path, (0, 4))
    actual = load_paged(family.model_path, 0, 4)
    prompts = [make_prompt(length, seed=length) for length in (20, 7, 33)]
    answers = []
    for pipeline in (expected, actual):
        for row, prompt in enumerate(prompts[:2]):
            pipeline.run(_chunk(row, 0, prompt, pages=(3 * row, 3 * row + 1)))
        works = (
            decode_work(0, 20, 5),
            _chunk(2, 0, prompts[2][:17], pages=(9, 6, 12)),
            decode_work(1, 7, 6),
        )
        with recorded_logits() as rows:
            ids = pipeline.run(*works)
            ids += pipeline.run(decode_work(1, 8, 9), _chunk(2, 17, prompts[2][17:]))
        answers.append(Answer(ids=ids, logits_nV=torch.cat(rows)))
    check_same(*answers)


def test_what_broke_a_request_does_not_reach_the_next_one(tmp_path: pathlib.Path) -> None:
    """Kernels multiply what is behind the last key by zero, and zero times NaN is NaN."""
    make_tiny(tmp_path, "Qwen3")
    pipeline = load_paged(tmp_path, 0, 4)
    [stage] = pipeline.stages
    broken = np.full(stage.page_layer_bytes(), 0xFF, dtype=np.uint8)
    for layer, page in itertools.product(range(4), range(3)):
        stage.write_page(layer, page, broken)
    pipeline.run(_chunk(0, 0, make_prompt(20, seed=3), pages=(0, 1)))
    for layer in range(4):
        assert np.isfinite(stage.read_page(layer, 1).view(np.float32)).all()


def test_prompt_log_probabilities(family: Expected) -> None:
    """Prompt targets read all rows of the last layer, not only the last."""
    prompt = family.prompt
    work = Work(
        row=0,
        start=0,
        token_ids=tuple(prompt[:-1]),
        new_page_ids=(0, 1, 2, 3),
        sampling=sampling_row(),
        target_ids=tuple(prompt[1:]),
    )
    expected = load_pipeline(family.model_path, (0, 4)).output(work)
    actual = load_paged(family.model_path, 0, 4).output(work)
    assert expected.sampled_ids == actual.sampled_ids
    torch.testing.assert_close(
        torch.from_numpy(expected.prompt_logprobs[0].logprobs_T),
        torch.from_numpy(actual.prompt_logprobs[0].logprobs_T),
        atol=1e-3,
        rtol=1e-3,
    )


def test_bfloat16(family: Expected) -> None:
    """Narrow types go through torch's fused attention and grouped products."""
    wide = load_paged(family.model_path, 0, 4)
    narrow = load_paged(family.model_path, 0, 4, dtype="bfloat16")
    logits = []
    for pipeline in (wide, narrow):
        with recorded_logits() as rows:
            pipeline.generate(family.prompt, 1, chunk_tokens=29)
            pipeline.run(_chunk(0, 0, family.prompt, pages=(0, 1, 2, 3)))
            pipeline.run(decode_work(0, len(family.prompt), 1))
        logits.append(torch.cat(rows))
    assert deviation(logits[1], logits[0]) < NARROW_DEVIATION


def test_copied_pages(family: Expected) -> None:
    """Several outputs of one prompt go on from copies of its last page."""
    pipeline = load_paged(family.model_path, 0, 4)
    pipeline.run(_chunk(0, 0, family.prompt, pages=(0, 1, 2, 3)))
    pipeline.stages[0].copy_pages((3,), (7,))
    step = decode_work(0, len(family.prompt), family.ids[0])
    others = dataclasses.replace(step, row=1, new_page_ids=(0, 1, 2, 7))
    assert pipeline.run(step) == pipeline.run(others) == (family.ids[1],)


def _chunk(row: int, start: int, prompt: list[int], pages: tuple[int, ...] = ()) -> Work:
    return Work(
        row=row,
        start=start,
        token_ids=tuple(prompt),
        new_page_ids=pages,
        sampling=sampling_row(),
    )
