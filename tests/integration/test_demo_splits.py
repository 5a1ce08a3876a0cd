"""Pages of the real demo model, stored by one split of its layers and loaded by others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers

from chunkmesh.demo_model import ensure_demo_model
from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.model_stage import load_stage
from tests.cached_mesh import cached_mesh
from tests.mesh import PAGE_TOKENS
from tests.prompts import long_prompt
from tests.reference import Reference
from tests.valkey import Valkey

NEW_TOKENS = 12
WRITERS = (0, 15, 30)
READERS = [(0, 10, 20, 30), (0, 30), (0, 3, 4, 30), (0, 28, 30)]
"""Three stages, one, and uneven ones; borders of layers."""

# The first run makes the demo model.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def _ask(
    model: Path, borders: Sequence[int], valkey: Valkey, prompt: Sequence[int]
) -> tuple[list[int], int]:
    """Run a mesh whose layers are cut so; return the answer and what was found in Redis of it."""
    stages = [load_stage(model, layers=range(*part)) for part in itertools.pairwise(borders)]
    async with cached_mesh(model, stages, valkey.url) as running:
        complete = await running.generate(
            input_ids=pb.TokenIds(ids=prompt),
            sampling_params=pb.SamplingParams(
                temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
            ),
        )
        await running.at_rest()
    return list(complete.output_ids), complete.cached_tokens


@pytest.mark.parametrize(
    ("writers", "readers"), [(WRITERS, READERS), (READERS[0], [READERS[1], WRITERS])]
)
async def test_what_one_split_stored_is_a_full_hit_on_every_other(
    valkey: Valkey, writers: Sequence[int], readers: Sequence[Sequence[int]]
) -> None:
    """Pages belong to layers, not to stages: who computed them cannot be told from the answer."""
    model = ensure_demo_model()
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    prompt = list(tokenizer.encode(long_prompt(300)).ids)
    expected = Reference(model).generate(prompt, NEW_TOKENS)
    full_hit = (len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS
    assert (expected, 0) == await _ask(model, writers, valkey, prompt)
    for borders in readers:
        assert (expected, full_hit) == await _ask(model, borders, valkey, prompt)
