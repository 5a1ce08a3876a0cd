"""chunkmesh.bench.prompts: prompts of exact lengths that a seed repeats."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np

from chunkmesh.bench.prompts import (
    BenchPrompt,
    Lengths,
    SharedPrefixes,
    Vocabulary,
    digest,
    random_prompts,
    shared_prefix_prompts,
)

_VOCABULARY = Vocabulary.of(1000, without=[2, 7])


def _ids(prompt: BenchPrompt) -> list[int]:
    assert isinstance(prompt.content, bytes)
    return [int(each) for each in np.frombuffer(prompt.content, dtype="<u4")]


def _random(seed: int, *, number: int = 20, range_ratio: float = 0.0) -> tuple[BenchPrompt, ...]:
    inputs, outputs = (Lengths(mean=mean, range_ratio=range_ratio) for mean in (64, 10))
    return random_prompts(number, inputs, outputs, _VOCABULARY, np.random.default_rng(seed))


def test_without_a_range_every_length_is_exact() -> None:
    """Figures of 64 tokens must be figures of 64 tokens."""
    prompts = _random(0)
    assert {64} == {len(_ids(prompt)) for prompt in prompts}
    assert {10} == {prompt.output_tokens for prompt in prompts}


def test_a_range_is_drawn_from_to_both_ends() -> None:
    """Half of 64 around it is 32 to 96, ends included, as vLLM's flag has it."""
    lengths = Lengths(mean=64, range_ratio=0.5).draw(5000, np.random.default_rng(0))
    assert (32, 96) == (lengths.min(), lengths.max())
    assert abs(lengths.mean() - 64) < 1


def test_no_length_is_below_one() -> None:
    """A prompt of none would be refused."""
    lengths = Lengths(mean=1, range_ratio=0.9).draw(100, np.random.default_rng(0))
    assert lengths.min() == 1


def test_a_seed_repeats_prompts_and_another_does_not() -> None:
    """Two results are of the same load only then."""
    assert _random(3, range_ratio=0.5) == _random(3, range_ratio=0.5)
    assert digest(_random(3)) != digest(_random(4))


def test_prompts_have_no_beginning_in_common() -> None:
    """The prefix cache would answer for the stages."""
    starts = {tuple(_ids(prompt)[:8]) for prompt in _random(0, number=200)}
    assert len(starts) == 200


def test_ids_are_of_the_vocabulary_and_end_nothing() -> None:
    """Others are refused by the scheduler; end tokens make a prompt of several texts."""
    used = {token_id for prompt in _random(0, number=500) for token_id in _ids(prompt)}
    assert used == set(range(1000)) - {2, 7}


def test_groups_share_their_prefix_and_nothing_else() -> None:
    """So the share that a cache can save is known beforehand."""
    shape = SharedPrefixes(num_groups=3, prefix_tokens=32, question_tokens=8, output_tokens=4)
    prompts = shared_prefix_prompts(10, shape, _VOCABULARY, np.random.default_rng(1))
    ids = [_ids(prompt) for prompt in prompts]
    assert {40} == set(map(len, ids))
    assert [3, 3, 4] == sorted(Counter(tuple(each[:32]) for each in ids).values())
    assert len({tuple(each[32:]) for each in ids}) == 10
    assert {4} == {prompt.output_tokens for prompt in prompts}


def test_groups_do_not_come_in_turn() -> None:
    """In turn, a cache of one prefix less than there are groups would never hit."""
    shape = SharedPrefixes(num_groups=4, prefix_tokens=8, question_tokens=4, output_tokens=1)
    prompts = shared_prefix_prompts(40, shape, _VOCABULARY, np.random.default_rng(0))
    starts = [tuple(_ids(prompt)[:8]) for prompt in prompts]
    assert any(one == other for one, other in itertools.pairwise(starts))


def test_the_digest_tells_texts_ids_lengths_and_order_apart() -> None:
    """It stands for the whole dataset when two results are compared."""
    one = BenchPrompt(content=b"abcd", output_tokens=1)
    two = BenchPrompt(content="abcd", output_tokens=1)
    longer = dataclasses.replace(one, output_tokens=2)
    datasets = [[one], [two], [longer], [one, two], [two, one]]
    assert len({digest(each) for each in datasets}) == len(datasets)
