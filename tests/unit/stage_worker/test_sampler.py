"""What the sampler may choose, and what its choice may depend on."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.token_counts import TokenCounts, count_tokens
from stage_worker.orders import Penalties, SamplingRow
from stage_worker.sampler import Sampled, Sampler
from tests.pipeline_of_stages import sampling_row

VOCAB = 264
NUM_DRAWS = 400


def _logits(**by_id: float) -> torch.Tensor:
    """Return a row of -30 with some ids raised, given as id_65=2.0."""
    row = torch.full((VOCAB,), -30.0)
    for name, value in by_id.items():
        row[int(name.removeprefix("id_"))] = value
    return row


def sample(logits_V: torch.Tensor, row: SamplingRow) -> int:
    """Choose one id of one row."""
    return Sampler().sample((row,), logits_V[None], (0,)).ids[0]


def _together(rows: list[SamplingRow], logits: list[torch.Tensor]) -> Sampled:
    """Choose for rows with logits of their own."""
    return Sampler().sample(rows, torch.stack(logits), range(len(rows)))


def _seen(*ids: int) -> TokenCounts:
    return count_tokens(np.array(ids, dtype=np.uint32))


def _penalties(**changes: Any) -> Penalties:
    settings: dict[str, Any] = {"frequency": 0.0, "presence": 0.0, "repetition": 1.0, "seen": None}
    return Penalties(**(settings | changes))


def _draws(logits: torch.Tensor, **settings: Any) -> collections.Counter[int]:
    return collections.Counter(
        sample(logits, sampling_row(seed=7, position=position, **settings))
        for position in range(NUM_DRAWS)
    )


def test_greedy_takes_the_largest_logit() -> None:
    """Temperature 0 ignores every other setting."""
    logits = _logits(id_65=2.0, id_66=2.5)
    assert sample(logits, sampling_row(top_k=5, top_p=0.1, min_p=0.5)) == 66


@pytest.mark.parametrize("temperature", [0, 1e-45, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_do_not_overflow(temperature: float) -> None:
    """A half-precision row divided by 1e-4 leaves the range of half precision (O08)."""
    logits = torch.zeros(VOCAB, dtype=torch.float16)
    logits[65], logits[66] = 20, 19
    assert sample(logits, sampling_row(seed=3, temperature=temperature)) == 65


@pytest.mark.parametrize("top_k", [0, 1, VOCAB, VOCAB + 1, 9_999_999])
def test_top_k_beyond_the_vocabulary_keeps_all(top_k: int) -> None:
    """An oversized top_k is clamped, not an error (O08)."""
    seen = _draws(_logits(id_65=1.0, id_66=1.0), temperature=1.0, top_k=top_k)
    assert set(seen) == ({65} if top_k == 1 else {65, 66})


def test_draws_follow_the_probabilities() -> None:
    """Logits ln 3 apart at temperature 1 mean three to one."""
    seen = _draws(_logits(id_65=1.0986123, id_66=0.0), temperature=1.0)
    assert seen[65] / NUM_DRAWS == pytest.approx(0.75, abs=0.06)
    assert set(seen) == {65, 66}


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {65, 66}),
        ({"top_p": 0.49}, {65}),
        ({"top_p": 0.51}, {65, 66}),
        ({"top_p": 0.8, "top_k": 2}, {65, 66}),
        ({"min_p": 0.7}, {65}),
        ({"min_p": 0.5}, {65, 66}),
        ({"forbidden_ids": (65, 66)}, {67}),
    ],
)
def test_filters(settings: dict[str, object], allowed: set[int]) -> None:
    """Probabilities here are 0.5, 0.3 and 0.2."""
    logits = _logits(id_65=-0.693147, id_66=-1.203973, id_67=-1.609438)
    assert set(_draws(logits, temperature=1.0, **settings)) == allowed


def test_forbidden_ids_hold_for_greedy() -> None:
    """End tokens before min_new_tokens are skipped without changing the logits."""
    logits = _logits(id_65=2.0, id_66=1.0)
    assert sample(logits, sampling_row(forbidden_ids=(65,))) == 66
    assert float(logits[65]) == 2.0


def test_seed_and_position_decide() -> None:
    """The same request draws the same ids whenever it runs (O06)."""
    logits = torch.zeros(VOCAB)
    first = [sample(logits, sampling_row(seed=42, position=p, temperature=0.8)) for p in range(16)]
    again = [sample(logits, sampling_row(seed=42, position=p, temperature=0.8)) for p in range(16)]
    other = [sample(logits, sampling_row(seed=43, position=p, temperature=0.8)) for p in range(16)]
    assert first == again
    assert first != other


def test_impossible_tokens_are_never_drawn() -> None:
    """A probability of exactly zero is not rounded into a choice."""
    logits = torch.full((VOCAB,), -torch.inf)
    logits[100:103] = 0.0
    assert set(_draws(logits, temperature=1.0)) == {100, 101, 102}


NEIGHBOURS = [
    sampling_row(seed=7, temperature=0.8, top_p=0.5),
    sampling_row(),
    sampling_row(seed=9, temperature=2.0, top_k=3, top_logprobs=2),
    sampling_row(row=5, penalties=_penalties(presence=2.0, seen=_seen(65, 66)), temperature=1.0),
]


@pytest.mark.parametrize("neighbours", [NEIGHBOURS, NEIGHBOURS[::-1], NEIGHBOURS[:1]])
def test_neighbours_do_not_matter(neighbours: list[SamplingRow]) -> None:
    """One seed's ids are the same whatever else is in the batch, and at which place (O06)."""
    logits = _logits(**{f"id_{id_}": 0.0 for id_ in range(65, 73)})
    others = [torch.randn(VOCAB) for _ in neighbours]
    for position in range(16):
        row = sampling_row(seed=42, temperature=0.8, position=position)
        alone = sample(logits, row)
        first = _together([row, *neighbours], [logits, *others]).ids[0]
        last = _together([*neighbours, row], [*others, logits]).ids[-1]
        assert (alone, alone) == (first, last)


def test_greedy_neighbour_of_every_top_k() -> None:
    """Greedy and filtered rows in one batch, up to values beyond the vocabulary (O08)."""
    logits = torch.zeros(VOCAB, dtype=torch.float16)
    logits[65], logits[66] = 20, 19
    for top_k in (0, 1, VOCAB, VOCAB + 1, 9_999_999):
        drawn = sampling_row(seed=1, temperature=1.0, top_k=top_k)
        ids = _together([drawn, sampling_row()], [logits, logits]).ids
        assert ids[0] in ({65} if top_k == 1 else {65, 66})
        assert ids[1] == 65


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equal_logits_are_decided_by_id(dtype: torch.dtype) -> None:
    """Greedy takes the lowest of the most likely ids, on every path that leads there."""
    logits = torch.zeros(VOCAB, dtype=dtype)
    logits[[200, 70, 90]] = 3.0
    rows = [
        sampling_row(),
        sampling_row(forbidden_ids=(1,)),
        sampling_row(logit_bias=((1, -1.0),)),
        sampling_row(temperature=1.0, top_k=1),
        sampling_row(temperature=1.0, top_p=1e-6),
    ]
    assert (70,) * 5 == _together(rows, [logits] * 5).ids


def test_n_rows_on_one_row_of_logits() -> None:
    """Outputs of one request share the prompt's logits, and differ by their child (O05)."""
    logits = _logits(**{f"id_{id_}": 0.0 for id_ in range(65, 73)})[None]
    rows = [sampling_row(seed=7, child=child, row=child, temperature=1.0) for child in range(8)]
    ids = Sampler().sample(rows, logits, [0] * 8).ids
    assert set(ids) <= set(range(65, 73))
    assert len(set(ids)) > 2
    assert ids == Sampler().sample(rows, logits, [0] * 8).ids


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.5, "top_p": 0.9},
        {"temperature": 0.0},
        {"temperature": 0.01, "top_k": 1},
        {"temperature": 1.0, "penalties": _penalties(presence=9.0, seen=_seen(65))},
        {"temperature": 1.0, "logit_bias": ((66, 50.0),), "forbidden_ids": (65,)},
    ],
)
def test_logprobs_are_those_of_the_model(settings: dict[str, Any]) -> None:
    """Whatever was asked for, the same numbers, and the chosen id's among them (O07)."""
    logits = torch.full((VOCAB,), -1e9)
    logits[65:69] = torch.tensor([1.0, 0.0, -1.0, -2.0])
    sampled = Sampler().sample((sampling_row(top_logprobs=4, **settings),), logits[None], (0,))
    [logprobs] = sampled.logprobs
    expected = [-0.4402, -1.4402, -2.4402, -3.4402]
    assert [[65, 66, 67, 68]] == logprobs.top_ids_Tk.tolist()
    assert logprobs.top_logprobs_Tk[0].tolist() == pytest.approx(expected, abs=1e-4)
    [chosen] = logprobs.logprobs_T.tolist()
    assert chosen == pytest.approx(expected[sampled.ids[0] - 65], abs=1e-4)


def test_logprobs_only_for_rows_that_ask() -> None:
    """They come in the order of those rows, each with as many ids as asked for."""
    logits = [_logits(**{f"id_{65 + n}": 1.0}) for n in range(4)]
    asked = [None, 0, None, 3]
    rows = [sampling_row(top_logprobs=num_top) for num_top in asked]
    sampled = _together(rows, logits)
    assert [(1, 0), (1, 3)] == [each.top_ids_Tk.shape for each in sampled.logprobs]
    assert sampled.logprobs[1].top_ids_Tk[0, 0] == 68


def test_repetition_of_prompt_tokens() -> None:
    """Adjusted logits are 2.3077, 2.9, -1.3 and -1.2, so 66 is chosen (O09)."""
    logits = _logits(id_65=3.0, id_66=2.9, id_67=-1.0, id_68=-1.2)
    row = sampling_row(penalties=_penalties(repetition=1.3, seen=_seen(*[65, 67] * 8, 1)))
    assert sample(logits, row) == 66
    adjusted = Sampler()._adjusted(row, logits)[65:69]
    assert adjusted.tolist() == pytest.approx([2.3077, 2.9, -1.3, -1.2], abs=1e-4)


def test_output_is_counted() -> None:
    """After the first row the stage counts by itself; temperature does not matter."""
    logits = _logits(id_65=3.0, id_66=2.0, id_67=1.1)
    sampler = Sampler()
    ids: list[int] = []
    for position in range(6):
        penalties = _penalties(frequency=1.0, seen=_seen(1) if position == 0 else None)
        row = sampling_row(penalties=penalties, position=position, temperature=1e-4)
        ids += sampler.sample((row,), logits[None], (0,)).ids
    # Each choice costs its id one: the six largest of 3 2 1, 2 1 and 1.1 are taken.
    assert collections.Counter({65: 3, 66: 2, 67: 1}) == collections.Counter(ids)


def test_seen_tokens_must_have_been_told() -> None:
    """Counting from nothing would give other tokens than before (O09)."""
    sampler = Sampler()
    told = sampling_row(row=4, penalties=_penalties(presence=1.0, seen=_seen(1)))
    counted = sampling_row(row=4, penalties=_penalties(presence=1.0))
    logits = _logits(id_65=3.0)[None]
    sampler.sample((told,), logits, (0,))
    sampler.sample((counted,), logits, (0,))
    sampler.release(4)
    with pytest.raises(InvariantViolated, match="row 4"):
        sampler.sample((counted,), logits, (0,))
    sampler.sample((told,), logits, (0,))
    sampler.clear()
    with pytest.raises(InvariantViolated, match="row 4"):
        sampler.sample((counted,), logits, (0,))


def test_order_of_adjustments() -> None:
    """Penalties see the model's sign, bias comes behind them, forbidding has the last word."""
    logits = _logits(id_65=2.0, id_66=-2.0, id_67=1.0)
    row = sampling_row(
        penalties=_penalties(repetition=2.0, frequency=1.0, seen=_seen(65, 66, 67)),
        logit_bias=((65, -5.0), (66, 5.0), (67, 100.0)),
        forbidden_ids=(67,),
    )
    adjusted = Sampler()._adjusted(row, logits)[65:68].tolist()
    assert [2.0 / 2 - 1 - 5, -2.0 * 2 - 1 + 5, float("-inf")] == adjusted
    assert logits[65:68].tolist() == [2.0, -2.0, 1.0]


@pytest.mark.parametrize("bias", [100.0, -100.0])
def test_bias_decides(bias: float) -> None:
    """As users of other servers know it: 100 forces an id, -100 bans it."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(6))
    best = int(logits.argmax())
    drawn = set(_draws(logits, temperature=1.0, logit_bias=((best, bias),)))
    assert ({best} if bias > 0 else drawn - {best}) == drawn


def test_half_precision_is_adjusted_in_single() -> None:
    """A bias below the spacing of bfloat16 numbers still decides."""
    logits = torch.full((VOCAB,), -30.0, dtype=torch.bfloat16)
    logits[65:67] = 16.0
    assert sample(logits, sampling_row(logit_bias=((66, 0.01),))) == 66


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_broken_logits_are_no_choice(temperature: float, dtype: torch.dtype, value: float) -> None:
    """Broken weights must not become a token, and its neighbours get theirs."""
    logits = torch.zeros(VOCAB, dtype=dtype)
    logits[200] = value
    row = sampling_row(row=12, position=3, temperature=temperature, top_logprobs=1)
    sound = torch.zeros(VOCAB, dtype=dtype)
    sound[7] = 1.0
    sampled = Sampler().sample([row, sampling_row()], torch.stack([logits, sound]), [0, 1])
    assert sampled.without_choice == (0,)
    assert sampled.ids[1] == 7
    assert np.isfinite(sampled.logprobs[0].logprobs_T).all()


def test_a_row_without_any_possible_token() -> None:
    """Neither the model alone nor forbidding may leave nothing and go on with id 0."""
    row = sampling_row(row=12, temperature=1.0)
    only = torch.full((VOCAB,), -torch.inf)
    assert Sampler().sample([row], only[None], [0]).without_choice == (0,)
    only[9] = 0.0
    row = sampling_row(row=12, temperature=1.0, forbidden_ids=(9,))
    assert Sampler().sample([row], only[None], [0]).without_choice == (0,)


@pytest.mark.parametrize("settings", [{"forbidden_ids": (264,)}, {"logit_bias": ((264, 1.0),)}])
def test_ids_outside_the_vocabulary_are_bugs(settings: dict[str, Any]) -> None:
    """Memory behind the logits is never written."""
    with pytest.raises(InvariantViolated, match="id 264 of a vocabulary of 264"):
        sample(torch.zeros(VOCAB), sampling_row(**settings))
