"""The scripted stage plays given logits through the product's sampler."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chunkmesh.token_counts import count_tokens
from stage_worker.orders import Entry, Microbatch, Penalties, PromptTargets, SamplingRow
from stage_worker.stage import StageOutput
from tests.pipeline_of_stages import sampling_row
from tests.scripted_stage import Script, ScriptedStage, logits_row

EIGHT = logits_row(dict.fromkeys(range(65, 73), 0.0))
END = logits_row({257: 0.0})
LOGPROBS = logits_row({65: 1.0, 66: 0.0, 67: -1.0, 68: -2.0}, -1e9)


def _stage(script: Script) -> ScriptedStage:
    stage = ScriptedStage(0, 1, 1, script)
    stage.allocate(num_pages=4, page_tokens=16)
    return stage


def _run(stage: ScriptedStage, *rows: SamplingRow, num_targets: int = 0) -> StageOutput:
    targets = PromptTargets(
        entry=0, target_ids=np.arange(65, 65 + num_targets, dtype=np.uint32), top_logprobs=4
    )
    microbatch = Microbatch(
        epoch=1,
        seq_no=0,
        entries=(Entry(row=99, start=0, num_tokens=8, new_page_ids=(0,)),),
        token_ids=np.arange(8, dtype=np.uint32),
        sampling=rows,
        prompt_targets=(targets,) if num_targets else (),
    )
    stage.release(99)
    return stage.forward(microbatch, None, None)


def _play(script: Script, num_steps: int, *, children: int = 1) -> list[list[int]]:
    """Return the ids of each child at temperature 1."""
    stage = _stage(script)
    steps = [
        _run(
            stage,
            *(
                sampling_row(row=child, child=child, seed=7, position=position, temperature=1.0)
                for child in range(children)
            ),
        ).sampled_ids
        for position in range(num_steps)
    ]
    return [list(ids) for ids in zip(*steps, strict=True)]


def test_o05_children_of_one_seed() -> None:
    """Children draw on their own, the same again, and one's end leaves the others as they were."""
    script = Script(logits={7: [EIGHT]})
    three = _play(script, 24, children=3)
    assert len({tuple(ids) for ids in three}) > 1
    assert three == _play(script, 24, children=3)
    ended = Script(logits={7: [EIGHT], (7, 0): [EIGHT, EIGHT, END]})
    first, *others = _play(ended, 24, children=3)
    assert [*three[0][:2], 257] == first[:3]
    assert three[1:] == others


def test_ids_are_played_whatever_the_settings() -> None:
    """Scripts of ids, by seed and child, behind their end and for unknown seeds."""
    stage = _stage(Script(ids={7: [1, 2], (7, 1): [3]}))
    rows = [
        sampling_row(seed=seed, child=child, position=position, temperature=1.0)
        for seed, child, position in [(7, 0, 0), (7, 0, 1), (7, 0, 2), (7, 1, 0), (8, 0, 0)]
    ]
    assert (1, 2, 65, 3, 65) == _run(stage, *rows).sampled_ids
    logprobs = _run(stage, sampling_row(seed=7, top_logprobs=1)).sampled_logprobs
    assert [[1]] == logprobs[0].top_ids_Tk.tolist()


def test_o06_logits_of_any_other_seed() -> None:
    """A request without a seed gets one that no script knows."""
    stage = _stage(Script(otherwise_logits=EIGHT))
    rows = [sampling_row(seed=seed, temperature=0.8) for seed in range(40)]
    assert set(range(65, 73)) == set(_run(stage, *rows).sampled_ids)


def test_o07_logprobs_of_output_and_prompt() -> None:
    """Both come from the given row."""
    stage = _stage(Script(logits={1: [LOGPROBS]}, prompt_logits=LOGPROBS))
    output = _run(stage, sampling_row(seed=1, top_logprobs=4), num_targets=2)
    expected = [-0.4402, -1.4402, -2.4402, -3.4402]
    assert output.sampled_logprobs[0].top_logprobs_Tk[0].tolist() == pytest.approx(
        expected, abs=1e-4
    )
    [prompt] = output.prompt_logprobs
    assert prompt.logprobs_T.tolist() == pytest.approx(expected[:2], abs=1e-4)
    assert [[65, 66, 67, 68]] * 2 == prompt.top_ids_Tk.tolist()


def test_prompts_without_given_logits() -> None:
    """Every id is as likely as any other."""
    [prompt] = _run(_stage(Script()), num_targets=3).prompt_logprobs
    assert prompt.logprobs_T.tolist() == pytest.approx([-np.log(264)] * 3, abs=1e-5)


def test_o09_penalties_on_given_logits() -> None:
    """The adjusted logits are 2.3077, 2.9, -1.3 and -1.2."""
    row_V = logits_row({65: 3.0, 66: 2.9, 67: -1.0, 68: -1.2})
    stage = _stage(Script(logits={1: [row_V]}))
    seen = count_tokens(np.array([65, 67], dtype=np.uint32))
    penalties = Penalties(frequency=0.0, presence=0.0, repetition=1.3, seen=seen)
    assert (66,) == _run(stage, sampling_row(seed=1, penalties=penalties)).sampled_ids


@pytest.mark.parametrize(("num_tokens", "expected_s"), [((1, 1), 0.5), ((1, 8), 0.75)])
def test_delays(num_tokens: tuple[int, ...], expected_s: float) -> None:
    """Prefill and decode may take different times, on top of what each forward takes."""
    script = Script(delay_s=0.25, prefill_delay_s=0.5, decode_delay_s=0.25)
    microbatch = Microbatch(
        epoch=1,
        seq_no=0,
        entries=tuple(
            Entry(row=row, start=0, num_tokens=num, new_page_ids=())
            for row, num in enumerate(num_tokens)
        ),
        token_ids=None,
        sampling=(),
    )
    assert expected_s == script.delay_of(microbatch)


def test_o08_half_precision_logits() -> None:
    """Scripts may give any dtype."""
    row_V = logits_row({65: 20.0, 66: 19.0}, 0.0, dtype=torch.float16)
    stage = _stage(Script(logits={1: [row_V]}))
    rows = [sampling_row(seed=1, temperature=t) for t in (0.0, 1e-6, 1e-5, 1e-4, 1e-3)]
    assert (65,) * 5 == _run(stage, *rows).sampled_ids
