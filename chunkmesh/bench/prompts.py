"""The prompts of a benchmark: ids of exact lengths, drawn from a given generator. Pure.

Ids are sent as they are, so a prompt has as many tokens as was asked for, whatever the tokenizer.
Source: the datasets random and prefix_repetition of
https://docs.vllm.ai/en/latest/benchmarking/cli/, generated-shared-prefix of
https://docs.sglang.ai/developer_guide/bench_serving.html
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Self

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    """What one request sends, and how much it asks for."""

    content: bytes | str
    """Token ids as little-endian unsigned 32-bit integers, or text."""
    output_tokens: int
    """Most new tokens, >= 1."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths drawn evenly from [mean * (1 - range_ratio), mean * (1 + range_ratio)]."""

    mean: int
    """>= 1."""
    range_ratio: float = 0.0
    """In [0, 1); 0 makes all alike."""

    def draw(self, number: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return that many lengths, each at least 1."""
        least = max(1, int(np.floor(self.mean * (1 - self.range_ratio))))
        most = max(least, int(np.ceil(self.mean * (1 + self.range_ratio))))
        return rng.integers(least, most, size=number, endpoint=True)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The ids that prompts are made of."""

    ids: Ids
    """Ascending, at least one."""

    @classmethod
    def of(cls, size: int, *, without: Iterable[int] = ()) -> Self:
        """Return the ids below size but for some, such as those that end an output."""
        return cls(np.setdiff1d(np.arange(size, dtype=np.uint32), list(without)))

    def draw(self, number: int, rng: np.random.Generator) -> Ids:
        """Return that many ids."""
        return self.ids[rng.integers(0, len(self.ids), size=number)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Prompts of a prefix that a group has in common, and a question of their own."""

    num_groups: int
    """>= 1."""
    prefix_tokens: int
    question_tokens: int
    """Both >= 1."""
    output_tokens: int


def random_prompts(
    number: int,
    inputs: Lengths,
    outputs: Lengths,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
) -> tuple[BenchPrompt, ...]:
    """Return prompts of random ids that have nothing in common."""
    input_tokens = inputs.draw(number, rng)
    output_tokens = outputs.draw(number, rng)
    ids = vocabulary.draw(int(input_tokens.sum()), rng)
    parts = np.split(ids, np.cumsum(input_tokens)[:-1])
    return tuple(
        BenchPrompt(content=_as_bytes(part), output_tokens=int(tokens))
        for part, tokens in zip(parts, output_tokens, strict=True)
    )


def shared_prefix_prompts(
    number: int, shape: SharedPrefixes, vocabulary: Vocabulary, rng: np.random.Generator
) -> tuple[BenchPrompt, ...]:
    """Return prompts of groups that are as large as each other but for one, in random order."""
    prefixes = [vocabulary.draw(shape.prefix_tokens, rng) for _ in range(shape.num_groups)]
    groups = rng.permutation(np.arange(number) % shape.num_groups)
    return tuple(
        BenchPrompt(
            content=_as_bytes(
                np.concatenate([prefixes[group], vocabulary.draw(shape.question_tokens, rng)])
            ),
            output_tokens=shape.output_tokens,
        )
        for group in groups
    )


def digest(prompts: Iterable[BenchPrompt]) -> str:
    """Return a SHA-256 in hexadecimal over all prompts and lengths, in order."""
    total = hashlib.sha256()
    for prompt in prompts:
        is_text = isinstance(prompt.content, str)
        content = prompt.content.encode() if isinstance(prompt.content, str) else prompt.content
        total.update(
            f"{'text' if is_text else 'ids'} {len(content)} {prompt.output_tokens} ".encode()
        )
        total.update(content)
    return total.hexdigest()


def _as_bytes(ids: Ids) -> bytes:
    return ids.astype("<u4").tobytes()
