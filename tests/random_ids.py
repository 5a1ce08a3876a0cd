"""Prompts made by a seed."""

from __future__ import annotations

import random

from tests.tiny_models import VOCAB_SIZE


def make_prompt(num_tokens: int, seed: int, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """Return random token ids."""
    rng = random.Random(seed)  # noqa: S311 nothing secret
    return [rng.randrange(vocab_size) for _ in range(num_tokens)]
