"""Outputs of a real model are the same alone, and pushed out of a small pool by others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkmesh.layers import partition
from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.model_stage import load_stage
from tests.gate import Gate
from tests.mesh import Mesh, mesh
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference

SMALL_TOKENS = 13 * 16
"""Of a pool of 13 pages: enough for the three requests below to begin, in the end they need 20."""
NEW_TOKENS = 40
LOGPROBS_TOLERANCE = 1e-3
"""A resumed output's keys and values are computed in other pieces, which rounds differently."""


def request(prompt_tokens: int, **params: Any) -> pb.GenerateRequest:
    """Return a request that only its length ends."""
    return pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=make_prompt(prompt_tokens, seed=prompt_tokens)),
        sampling_params=pb.SamplingParams(
            max_new_tokens=NEW_TOKENS, ignore_eos=True, logprobs=True, **params
        ),
    )


REQUESTS = (
    request(37, temperature=0),
    request(21, temperature=1.2, seed=5, n=3, frequency_penalty=0.7, repetition_penalty=1.2),
    request(30, temperature=0.8, seed=6, presence_penalty=1.0, top_p=0.9),
)


async def ends(running: Mesh, asked: pb.GenerateRequest) -> list[pb.GenerateComplete]:
    """Run a request and return the ends of its outputs by index."""
    call = running.stub.Generate(asked, timeout=60)
    completes = [each.complete async for each in call if each.HasField("complete")]
    return sorted(completes, key=lambda complete: complete.index)


def stages(folder: Path, num_stages: int) -> list[Any]:
    """Load the tiny Llama as this many stages."""
    parts = partition(4, num_stages)
    return [load_stage(folder, layers=range(part.first, part.last)) for part in parts]


def check_same(
    expected: Sequence[pb.GenerateComplete], actual: Sequence[pb.GenerateComplete]
) -> None:
    """Compare ids, and the log-probabilities that belong to them."""
    assert [list(end.output_ids) for end in expected] == [list(end.output_ids) for end in actual]
    for one, other in zip(expected, actual, strict=True):
        values = pytest.approx(list(one.logprobs.logprobs), abs=LOGPROBS_TOLERANCE)
        assert values == list(other.logprobs.logprobs)


async def test_preempted_outputs_are_what_they_would_have_been(tiny: Path) -> None:
    """Greedy or drawn, with penalties that count, one output or several: nobody sees the others."""
    async with mesh(tiny, stages(tiny, 1)) as running:
        alone = [await ends(running, asked) for asked in REQUESTS]
    reference = Reference(tiny).generate(list(REQUESTS[0].input_ids.ids), NEW_TOKENS)
    assert reference == list(alone[0][0].output_ids)
    assert len({tuple(end.output_ids) for end in alone[1]}) == 3
    for num_stages in (1, 3):
        gate = Gate()
        first, *rest = stages(tiny, num_stages)
        held = [RecordedStage(first, gate=gate), *rest]
        async with mesh(tiny, held, kv_capacity_tokens=SMALL_TOKENS) as running:
            tasks = []
            for index, asked in enumerate(REQUESTS):
                tasks.append(asyncio.ensure_future(ends(running, asked)))
                await running.has_requests(index + 1)
            gate.open()
            together = await asyncio.gather(*tasks)
            await running.at_rest()
        for expected, actual in zip(alone, together, strict=True):
            check_same(expected, actual)
        num_preemptions = [[end.num_preemptions for end in each] for each in together]
        assert sum(num_preemptions[1]) >= 1, "no output among several was pushed out"
        assert sum(num_preemptions[2]) >= 1, "the last one was not pushed out"


async def test_outputs_of_one_prompt_are_those_of_the_model(tiny: Path) -> None:
    """A partial page is copied for each; what one writes into its copy no other may read."""
    prompt = make_prompt(21, seed=3)
    asked = pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=1.0, seed=1, n=4, max_new_tokens=20, ignore_eos=True, logprobs=True
        ),
    )
    async with mesh(tiny, stages(tiny, 2)) as running:
        outputs = await ends(running, asked)
    assert len({tuple(end.output_ids) for end in outputs}) == 4
    model = Reference(tiny).model
    for end in outputs:
        with torch.inference_mode():
            logits_TV = model(torch.tensor([[*prompt, *end.output_ids]])).logits[0]
        logprobs_TV = torch.log_softmax(logits_TV[len(prompt) - 1 : -1], dim=1)
        expected = [
            float(row_V[token_id])
            for row_V, token_id in zip(logprobs_TV, end.output_ids, strict=True)
        ]
        assert pytest.approx(expected, abs=LOGPROBS_TOLERANCE) == list(end.logprobs.logprobs)
