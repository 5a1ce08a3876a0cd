"""Decode microbatches that are replayed say what launched ones say."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence
from unittest import mock

import pytest
import torch

from chunkmesh.errors import InvariantViolated
from stage_worker.paged.decode_memory import DecodeMemory
from stage_worker.paged.stage import PagedStage
from stage_worker.stage import StageOutput
from tests.pipeline_of_stages import PipelineOfStages, Work, decode_work, sampling_row
from tests.random_ids import make_prompt
from tests.repeated_steps import RepeatingRecorder, load_replayable
from tests.tiny_models import VOCAB_SIZE, make_tiny

MOST_ROWS = 12
PAGE_TOKENS = 16
NUM_ROWS = 14
"""Requests, some more than are replayed."""


@pytest.fixture(scope="module", params=["Qwen3", "Qwen3Moe", "DeepseekV3"])
def model_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """Write models of heads, experts and latents."""
    path = tmp_path_factory.mktemp(request.param)
    make_tiny(path, request.param)
    return path


def pipeline(model_path: pathlib.Path, recorder: RepeatingRecorder | None) -> PipelineOfStages:
    """Load two stages that replay, or that do not."""
    stages: list[PagedStage] = []
    for layers in (range(2), range(2, 4)):
        stage = load_replayable(model_path, layers)
        if recorder is not None:
            stage.use_replays(MOST_ROWS, recorder)
        stages.append(stage)
    return PipelineOfStages(stages, num_pages=NUM_ROWS * 4, page_tokens=PAGE_TOKENS)


def begin(pipeline: PipelineOfStages, lengths: Sequence[int]) -> list[int]:
    """Compute prompts of these lengths, each with pages for what follows; return first tokens."""
    ids: list[int] = []
    for row, length in enumerate(lengths):
        prompt = tuple(make_prompt(length, seed=row))
        pages = tuple(range(4 * row, 4 * row + 4))
        work = Work(row=row, start=0, token_ids=prompt, new_page_ids=pages, sampling=sampling_row())
        ids += pipeline.run(work)
    return ids


def steps(pipeline: PipelineOfStages, seed: int) -> list[StageOutput]:
    """Run random decode microbatches, with chunks between, and return what they say."""
    dice = random.Random(seed)  # noqa: S311 - a test
    lengths = [dice.choice((14, 15, 16, 17, 30)) for _ in range(NUM_ROWS)]
    tokens = begin(pipeline, lengths)
    outputs = []
    for turn in range(12):
        rows = dice.sample(range(NUM_ROWS), dice.choice((1, 2, 3, 5, 8, 9, 12, NUM_ROWS)))
        top = sampling_row(top_logprobs=5) if turn % 3 else sampling_row()
        works = [
            dataclasses.replace(decode_work(row, lengths[row], tokens[row]), sampling=top)
            for row in rows
        ]
        output = pipeline.output(*works)
        outputs.append(output)
        for row, token in zip(rows, output.sampled_ids, strict=True):
            lengths[row] += 1
            tokens[row] = token
        if turn == 6:  # a chunk in between needs more scratch memory than any step
            row = rows[0]
            chunk = Work(
                row=row,
                start=lengths[row],
                token_ids=(1, 2, 3),
                new_page_ids=(),
                sampling=sampling_row(),
            )
            outputs.append(pipeline.output(chunk))
            lengths[row] += 3
    return outputs


@pytest.mark.parametrize("seed", [1, 2])
def test_replayed_steps_say_what_launched_ones_say(model_path: pathlib.Path, seed: int) -> None:
    """Rows come, go and change places; lengths cross borders of pages; filler must not be seen."""
    recorder = RepeatingRecorder()
    expected = steps(pipeline(model_path, None), seed)
    actual = steps(pipeline(model_path, recorder), seed)
    assert [each.sampled_ids for each in expected] == [each.sampled_ids for each in actual]
    for one, other in zip(expected, actual, strict=True):
        for first, second in zip(one.sampled_logprobs, other.sampled_logprobs, strict=True):
            torch.testing.assert_close(
                torch.from_numpy(first.top_logprobs_Tk),
                torch.from_numpy(second.top_logprobs_Tk),
                atol=1e-4,
                rtol=1e-4,
            )
    assert recorder.num_replays > 10


def test_filler_rows_write_to_no_page(model_path: pathlib.Path) -> None:
    """A step of three rows is replayed as one of four: the fourth writes where nobody reads."""
    recorder = RepeatingRecorder()
    replaying = pipeline(model_path, recorder)
    tokens = begin(replaying, (14, 16, 20))
    pages = [replaying.stages[0].read_page(0, page).copy() for page in range(replaying.num_pages)]
    works = [decode_work(row, at, tokens[row]) for row, at in enumerate((14, 16, 20))]
    replaying.run(*works)
    changed = [
        page
        for page in range(replaying.num_pages)
        if (replaying.stages[0].read_page(0, page) != pages[page]).any()
    ]
    assert changed == [0, 5, 9]
    assert recorder.num_replays == 2


def test_page_tables_are_sent_when_they_change(tmp_path: pathlib.Path) -> None:
    """A step is launched sooner without them; new pages, other rows and other places are told."""
    make_tiny(tmp_path, "Qwen3")
    stage = load_replayable(tmp_path, range(4))
    stage.use_replays(MOST_ROWS, RepeatingRecorder())
    replaying = PipelineOfStages([stage], num_pages=8, page_tokens=PAGE_TOKENS)
    begin(replaying, (10, 10))
    grown = dataclasses.replace(decode_work(0, 11, 1), new_page_ids=(7,))
    both = [decode_work(row, 12, 1) for row in (0, 1)]
    sent = []
    with mock.patch.object(DecodeMemory, "_send_table", autospec=True) as send:
        for works in ([decode_work(0, 10, 1)], [grown], both, [both[0]], both, both[::-1]):
            send.reset_mock()
            replaying.run(*works)
            sent.append(send.called)
    assert sent == [True, True, True, False, False, True]


def test_a_pool_is_recorded_once(tmp_path: pathlib.Path) -> None:
    """A new epoch with the same pool begins at once; one with another records anew."""
    make_tiny(tmp_path, "Qwen3")
    recorder = RepeatingRecorder()
    stage = load_replayable(tmp_path, range(4))
    stage.use_replays(MOST_ROWS, recorder)
    sizes = []
    for num_pages in (8, 8, 9, 1):
        recorder.num_recorded = 0
        stage.allocate(num_pages=num_pages, page_tokens=PAGE_TOKENS)
        sizes.append(recorder.num_recorded)
    assert sizes == [5, 0, 5, 0]  # 1, 2, 4, 8, 12; nothing for a pool that is given up


def test_what_cannot_be_replayed_is_told(tmp_path: pathlib.Path) -> None:
    """A stage that launches kernel by kernel says why, and serves."""
    make_tiny(tmp_path, "Qwen3")
    recorder = RepeatingRecorder()
    recorder.fault = RuntimeError("called a synchronizing operation\nmore")
    stage = load_replayable(tmp_path, range(4))
    stage.use_replays(MOST_ROWS, recorder)
    told = stage.description.backends[-1]
    assert (told.operation, told.name) == ("decode launches", "one by one")
    assert told.reason == "recording failed: called a synchronizing operation"
    serving = PipelineOfStages([stage], num_pages=8, page_tokens=PAGE_TOKENS)
    assert len(serving.generate(make_prompt(20, seed=1), 3)) == 3
    assert recorder.num_replays == 0


def test_ids_outside_the_vocabulary_are_refused(tmp_path: pathlib.Path) -> None:
    """A replay reads the embedding wherever an id points."""
    make_tiny(tmp_path, "Qwen3")
    stage = load_replayable(tmp_path, range(4))
    stage.use_replays(MOST_ROWS, RepeatingRecorder())
    serving = PipelineOfStages([stage], num_pages=8, page_tokens=PAGE_TOKENS)
    begin(serving, (5,))
    with pytest.raises(InvariantViolated):
        serving.run(decode_work(0, 5, VOCAB_SIZE))
