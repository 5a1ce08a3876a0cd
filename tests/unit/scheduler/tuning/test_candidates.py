"""Which chunks are tried."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from scheduler.chunk_choice import budget_for
from scheduler.latency_model import PipelineLatency, StageLatency
from scheduler.prefill import Prefill
from scheduler.tuning.candidates import (
    Candidate,
    TuneLimits,
    as_it_runs,
    dynamic_around,
    first_fixed,
    fixed_between,
)
from tests.model_times import CONFIG

LATENCY = PipelineLatency(
    (
        StageLatency(fixed_ms=2.0, ms_per_token=0.1, ms_per_pair=1e-5),
        StageLatency(fixed_ms=2.0, ms_per_token=0.2, ms_per_pair=2e-5),
    )
)


def limits(prompt_tokens: int = 2048, max_tokens: int = 512) -> TuneLimits:
    """Return what a mesh allows."""
    return TuneLimits(
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        page_tokens=64,
        context_tokens=1 << 20,
    )


def sizes(candidates: list[Candidate]) -> list[int]:
    """Return the sizes of fixed candidates."""
    assert all(len(each.chunk_tokens) == 1 for each in candidates)
    return [each.chunk_tokens[0] for each in candidates]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (limits(), [64, 128, 256, 512]),
        (limits(max_tokens=400), [64, 128, 256, 384]),
        (limits(prompt_tokens=300), [64, 128, 256]),
        (limits(prompt_tokens=100_000, max_tokens=4096), [512, 1024, 2048, 4096]),
        (limits(prompt_tokens=40), [40]),
    ],
)
def test_fixed_sizes_double_up_to_what_the_mesh_holds(
    given: TuneLimits, expected: list[int]
) -> None:
    """A long prompt in tiny chunks would eat the whole budget."""
    assert expected == sizes(first_fixed(given))


def test_the_best_size_is_looked_for_between_its_neighbours() -> None:
    """Half-way to each, aligned, and never a size that was tried."""
    tried = [64, 128, 256, 512]
    assert [192, 384] == sizes(fixed_between(256, tried, limits()))
    assert [384] == sizes(fixed_between(512, tried, limits()))
    assert [] == sizes(fixed_between(64, [64, 128], limits()))


def test_dynamic_chunks_begin_with_more_than_the_best_fixed_size() -> None:
    """As the guide has it; the sum is the prompt, and sizes shrink."""
    found = dynamic_around(128, LATENCY, limits())
    assert found
    for each in found:
        assert each.chunk_tokens[0] in {256, 384}
        assert 2048 == sum(each.chunk_tokens)
        assert min(each.chunk_tokens[:-1]) < each.chunk_tokens[0]
        assert f"--chunked-prefill-size {each.chunk_tokens[0]}" in each.flags
    assert len({each.chunk_tokens for each in found}) == len(found)


def test_dynamic_chunks_fit_the_mesh() -> None:
    """Buffers have one size."""
    for each in dynamic_around(512, LATENCY, limits()):
        assert max(each.chunk_tokens) <= 512


def test_dynamic_chunks_are_those_that_the_flags_give() -> None:
    """What was measured must be what a mesh does that is started with the flags, to the end."""
    near = TuneLimits(prompt_tokens=4000, max_tokens=1024, page_tokens=64, context_tokens=4096)
    found = dynamic_around(512, LATENCY, near)
    assert found
    for each in found:
        _, size, factor = (flag.split()[1] for flag in each.flags)
        config = dataclasses.replace(
            CONFIG,
            page_tokens=64,
            chunked_prefill_tokens=int(size),
            dynamic_smooth_factor=float(factor),
            context_tokens=4096,
        )
        prefill = Prefill(start=0, end=4000)
        budget_for("dynamic", config, LATENCY).begin(prefill)
        assert prefill.borders == (0, *itertools.accumulate(each.chunk_tokens))


def test_what_the_mesh_does_by_itself_is_asked_for_by_asking_nothing() -> None:
    """Its own plan must be measured as it is."""
    assert () == as_it_runs("optimal", 512).chunk_tokens
