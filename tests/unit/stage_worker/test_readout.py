"""Log-probabilities of prompt and output are those of transformers, however work is cut."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.logprobs import TokenLogprobs, join
from chunkmesh.token_counts import count_tokens
from stage_worker import readout
from stage_worker.decoder import Decoder
from stage_worker.head import Head
from stage_worker.model_stage import load_stage
from stage_worker.orders import Entry, Microbatch, Penalties, PromptTargets, SamplingRow
from tests.pipeline_of_stages import (
    NUM_TOP,
    PipelineOfStages,
    Work,
    decode_work,
    load_pipeline,
    sampling_row,
)
from tests.random_ids import make_prompt
from tests.reference import Reference

PAGES = tuple(range(6))
SPLITS = [
    (0, *borders, 4) for count in range(4) for borders in itertools.combinations((1, 2, 3), count)
]


def _expected(reference: Reference, ids: list[int]) -> torch.Tensor:
    """Return log-probabilities [T, V] of what follows each token."""
    with torch.inference_mode():
        logits: torch.Tensor = reference.model(torch.tensor([ids])).logits[0]
    return torch.log_softmax(logits, dim=1)


def _chunk(prompt: list[int], start: int, end: int, **sampling: Any) -> Work:
    """Return a chunk with targets across its border, sampled where the prompt ends."""
    return Work(
        row=0,
        start=start,
        token_ids=tuple(prompt[start:end]),
        new_page_ids=() if start else PAGES,
        sampling=sampling_row(**sampling) if end == len(prompt) else None,
        target_ids=tuple(prompt[start + 1 : end + 1]),
    )


def _prompt_logprobs(
    pipeline: PipelineOfStages, prompt: list[int], chunk_tokens: int
) -> TokenLogprobs:
    parts: list[TokenLogprobs] = []
    for start in range(0, len(prompt), chunk_tokens):
        work = _chunk(prompt, start, min(start + chunk_tokens, len(prompt)))
        parts += pipeline.output(work).prompt_logprobs
    return join(parts)


def _check(expected_TV: torch.Tensor, ids: list[int], found: TokenLogprobs) -> None:
    chosen = expected_TV[range(len(ids)), ids]
    np.testing.assert_allclose(chosen, found.logprobs_T, atol=1e-4, rtol=0)
    top = expected_TV.topk(NUM_TOP, dim=1)
    np.testing.assert_allclose(top.values, found.top_logprobs_Tk, atol=1e-4, rtol=0)
    assert np.array_equal(top.indices.numpy(), found.top_ids_Tk)


@pytest.mark.parametrize("borders", SPLITS)
def test_prompt_equals_transformers(
    tiny_llama: pathlib.Path, reference: Reference, prompt: list[int], borders: tuple[int, ...]
) -> None:
    """Split at every layer border; the target of a chunk's last token is in the next chunk."""
    found = _prompt_logprobs(load_pipeline(tiny_llama, borders), prompt, 32)
    _check(_expected(reference, prompt)[:-1], prompt[1:], found)


@pytest.mark.parametrize("slice_rows", [1, 7, 1024])
@pytest.mark.parametrize("chunk_tokens", [1, 15, 16, 17, 69, 70])
def test_chunks_and_slices(
    tiny_llama: pathlib.Path,
    reference: Reference,
    prompt: list[int],
    chunk_tokens: int,
    slice_rows: int,
) -> None:
    """Neither where a chunk ends nor how many rows the head takes at once may show."""
    with mock.patch.object(readout, "_SLICE_ROWS", slice_rows):
        pipeline = load_pipeline(tiny_llama, (0, 2, 4))
    found = _prompt_logprobs(pipeline, prompt, chunk_tokens)
    _check(_expected(reference, prompt)[:-1], prompt[1:], found)


def test_slices_bound_the_logits(tiny_llama: pathlib.Path) -> None:
    """Logits of a whole chunk of a large vocabulary would be gigabytes."""
    prompt = make_prompt(70, seed=1)
    rows = []
    compute = Head.logits

    def record(head: Head, hidden_nD: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden_nD))
        return compute(head, hidden_nD)

    with mock.patch.object(readout, "_SLICE_NUMBERS", 264 * 30 + 29):
        pipeline = load_pipeline(tiny_llama, (0, 4))
    with mock.patch.object(Head, "logits", record):
        pipeline.output(_chunk(prompt, 0, 70))
    assert [30, 30, 9, 1] == rows


def test_a_mixed_microbatch(tiny_llama: pathlib.Path, reference: Reference) -> None:
    """Targets of one entry leave the samples and targets of the others as they are."""
    a, b, c = (make_prompt(length, seed=length) for length in (5, 33, 40))
    [a0] = (pipeline := load_pipeline(tiny_llama, (0, 2, 4))).run(
        dataclasses.replace(_chunk(a, 0, 5), target_ids=())
    )
    decode = decode_work(0, 5, a0)
    entry_b = dataclasses.replace(_chunk(b, 0, 33), row=1, new_page_ids=(10, 11, 12))
    entry_c = dataclasses.replace(_chunk(c, 0, 20), row=2, new_page_ids=(20, 21, 22))
    output = pipeline.output(entry_c, decode, entry_b)
    expected_ids = (reference.generate(a, 2)[1], reference.generate(b, 1)[0])
    assert expected_ids == output.sampled_ids
    _check(_expected(reference, c)[:20], c[1:21], output.prompt_logprobs[0])
    _check(_expected(reference, b)[:32], b[1:], output.prompt_logprobs[1])


def test_output_equals_transformers(
    tiny_llama: pathlib.Path, reference: Reference, prompt: list[int]
) -> None:
    """Of the first token, from the prompt's logits, and of those decoded."""
    pipeline = load_pipeline(tiny_llama, (0, 1, 4))
    work = dataclasses.replace(_chunk(prompt, 0, 70, top_logprobs=NUM_TOP), target_ids=())
    ids: list[int] = []
    parts: list[TokenLogprobs] = []
    for _ in range(6):
        output = pipeline.output(work)
        ids += output.sampled_ids
        parts += output.sampled_logprobs
        work = dataclasses.replace(
            decode_work(0, len(prompt) + len(ids) - 1, ids[-1]),
            sampling=sampling_row(top_logprobs=NUM_TOP),
        )
    assert reference.generate(prompt, 6) == ids
    _check(_expected(reference, prompt + ids)[len(prompt) - 1 : -1], ids, join(parts))


def test_only_targets_keep_the_rows(tiny_llama: pathlib.Path, prompt: list[int]) -> None:
    """Without them the last layer drops what nobody reads, as it always did."""
    pipeline = load_pipeline(tiny_llama, (0, 4))
    dropped = []
    run = Decoder.run

    def record(decoder: Decoder, *rest: Any) -> torch.Tensor:
        dropped.append(rest[2] is not None)
        return run(decoder, *rest)

    with mock.patch.object(Decoder, "run", record):
        pipeline.output(dataclasses.replace(_chunk(prompt, 0, 70), target_ids=()))
        pipeline.output(_chunk(prompt, 0, 70))
    assert [True, False] == dropped


@pytest.mark.parametrize(
    ("sampled", "targets", "text"),
    [
        ((1,), (), "entry 1 of a microbatch of 1"),
        ((), ((1, 1),), "entry 1 of a microbatch of 1"),
        ((), ((0, 5),), "5 prompt targets for entry 0 of 4 tokens"),
        ((), ((0, 0),), "0 prompt targets"),
        ((), ((0, 2), (0, 2)), "several prompt targets"),
    ],
)
def test_orders_that_do_not_fit_are_bugs(
    tiny_llama: pathlib.Path,
    sampled: tuple[int, ...],
    targets: tuple[tuple[int, int], ...],
    text: str,
) -> None:
    """Another request's rows must not be read."""
    stage = load_stage(tiny_llama, layers=range(4))
    stage.allocate(num_pages=2, page_tokens=16)
    microbatch = Microbatch(
        epoch=1,
        seq_no=0,
        entries=(Entry(row=0, start=0, num_tokens=4, new_page_ids=(0,)),),
        token_ids=np.arange(4, dtype=np.uint32),
        sampling=tuple(sampling_row(entry=entry) for entry in sampled),
        prompt_targets=tuple(
            PromptTargets(entry=entry, target_ids=np.arange(num, dtype=np.uint32), top_logprobs=0)
            for entry, num in targets
        ),
    )
    with pytest.raises(InvariantViolated, match=text):
        stage.forward(microbatch, None, None)


@pytest.mark.parametrize("forget", ["release", "allocate"])
def test_a_stage_forgets_what_rows_have_seen(
    tiny_llama: pathlib.Path, prompt: list[int], penalised: SamplingRow, forget: str
) -> None:
    """Counts live exactly as long as the row that they are of."""
    pipeline = load_pipeline(tiny_llama, (0, 2, 4))
    work = dataclasses.replace(_chunk(prompt, 0, 70), sampling=penalised, target_ids=())
    [first] = pipeline.run(work)
    assert penalised.penalties is not None
    counted = dataclasses.replace(penalised.penalties, seen=None)
    step = dataclasses.replace(
        decode_work(0, 70, first), sampling=dataclasses.replace(penalised, penalties=counted)
    )
    [second] = pipeline.run(step)
    assert second not in {*prompt, first}
    for stage in pipeline.stages:
        if forget == "release":
            stage.release(0)
        else:
            stage.allocate(num_pages=64, page_tokens=16)
    with pytest.raises(InvariantViolated, match="row 0 has penalties"):
        pipeline.run(dataclasses.replace(step, new_page_ids=PAGES))


@pytest.fixture
def penalised(prompt: list[int]) -> SamplingRow:
    """A greedy row whose penalty rules out whatever was seen."""
    seen = count_tokens(np.array(prompt, dtype=np.uint32))
    penalties = Penalties(frequency=0.0, presence=1e6, repetition=1.0, seen=seen)
    return sampling_row(penalties=penalties)
