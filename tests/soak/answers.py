"""Prompts that share prefixes, and what the reference answers to each."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

from tests.random_ids import make_prompt
from tests.reference import Reference

NEW_TOKENS = 24
_PREFIX_TOKENS = (0, 40, 200, 640)
_NUM_PROMPTS = 24


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A prompt whose greedy answer is known."""

    prompt: list[int]
    answer: list[int]
    """NEW_TOKENS ids."""


def known_prompts(model: Path, seed: int) -> list[Known]:
    """Make prompts and ask the reference."""
    chance = random.Random(seed)  # noqa: S311 -- a seeded test
    reference = Reference(model)
    prefixes = [make_prompt(length, seed + length) for length in _PREFIX_TOKENS]
    prompts = [
        prefixes[index % len(prefixes)] + make_prompt(chance.randrange(1, 200), seed * 1000 + index)
        for index in range(_NUM_PROMPTS)
    ]
    return [
        Known(prompt=prompt, answer=reference.generate(prompt, NEW_TOKENS)) for prompt in prompts
    ]
