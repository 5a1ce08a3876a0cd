"""Both forms of latent attention answer the same, however work is cut."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from stage_worker.batch import Context
from stage_worker.expanded_attention import ExpandedQueries
from stage_worker.kv_pool import ContextReader, KvPool, PoolShape
from stage_worker.latent_expansion import ExpansionMemory
from stage_worker.model_stage import ModelStage, load_stage
from stage_worker.orders import Entry, Microbatch
from stage_worker.page_table import SlotRun
from tests.exactness import Expected, copy_pages
from tests.pipeline_of_stages import load_pipeline
from tests.random_ids import make_prompt
from tests.tiny_models import make_tiny

RULE = "stage_worker.step.is_expanded"
PIECE = "stage_worker.expanded_attention.PIECE_TOKENS"
NOISE = 1e-5
"""Largest difference of the forms, as a part of the range of what they give."""


@pytest.fixture(scope="module", params=["DeepseekV2", "DeepseekV3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tiny model of each family with latents."""
    path = tmp_path_factory.mktemp(request.param)
    make_tiny(path, request.param)
    return path


@pytest.fixture(scope="module")
def expected(model: pathlib.Path) -> Expected:
    """A hundred and fifty tokens of prompt."""
    return Expected(model, make_prompt(150, seed=1), 8)


@pytest.fixture(params=["absorbed", "expanded", "expanded in pieces of 13"])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force one form on every chunk of two rows or more."""
    pieces = 13 if "13" in request.param else 1024
    with mock.patch(RULE, return_value=request.param != "absorbed"), mock.patch(PIECE, pieces):
        yield request.param


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("borders", [(0, 4), (0, 1, 4), (0, 1, 2, 3, 4)])
def test_split_equals_whole(
    model: pathlib.Path, expected: Expected, borders: tuple[int, ...]
) -> None:
    """The last layer of a model treats rows differently, wherever the cuts are."""
    expected.check(load_pipeline(model, borders))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("page_tokens", [16, 128])
@pytest.mark.parametrize("chunk_tokens", [2, 15, 16, 17, 64])
def test_chunked_equals_unchunked(
    model: pathlib.Path, expected: Expected, page_tokens: int, chunk_tokens: int
) -> None:
    """Chunks may end anywhere in a page and in a piece."""
    pipeline = load_pipeline(model, (0, 2, 4), num_pages=16, page_tokens=page_tokens)
    expected.check(pipeline, chunk_tokens=chunk_tokens)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("page_ids", [range(63, -1, -2), (*range(5, 9), *range(20, 30))])
def test_scattered_pages(model: pathlib.Path, expected: Expected, page_ids: Sequence[int]) -> None:
    """A context is expanded from gathered pages as from a few runs of them."""
    expected.check(load_pipeline(model, (0, 4)), page_ids=list(page_ids), chunk_tokens=40)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("hit_pages", [1, 8, 9])
def test_hit_equals_recomputed(model: pathlib.Path, expected: Expected, hit_pages: int) -> None:
    """Cached pages hold latents, whichever form wrote them."""
    source = load_pipeline(model, (0, 1, 4))
    target = load_pipeline(model, (0, 4))
    source.generate(expected.prompt, 1)
    page_ids = list(range(30, 50))
    copy_pages(source, target, page_ids[:hit_pages])
    expected.check(target, page_ids=page_ids, first_position=hit_pages * 16)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    "fields",
    [
        {"v_head_dim": 56},
        {"qk_nope_head_dim": 64},
        {"q_lora_rank": 40, "qk_nope_head_dim": 4, "v_head_dim": 70},
    ],
)
def test_uncommon_widths(tmp_path: pathlib.Path, fields: dict[str, Any]) -> None:
    """Values may be wider than keys, and both wider than the cache."""
    make_tiny(tmp_path, "DeepseekV2", **fields)
    expected = Expected(tmp_path, make_prompt(60, seed=2), 4)
    expected.check(load_pipeline(tmp_path, (0, 1, 4)), chunk_tokens=25)


def test_rule_chooses(model: pathlib.Path) -> None:
    """From about 44 rows a token of context on at the tiny widths; decode rows never expand."""
    stage = _load(model)
    attend = ExpandedQueries.attend
    counts = []
    for entry in [(0, 0, 70), (0, 70, 10), (0, 80, 1), (0, 81, 60)]:
        with mock.patch.object(ExpandedQueries, "attend", autospec=True, side_effect=attend) as spy:
            _forward(stage, entry)
        counts.append(spy.call_count)
    assert counts == [2, 0, 0, 2]


def test_forms_differ_by_rounding_only(model: pathlib.Path) -> None:
    """Neither form is the truer one."""
    outputs = []
    for expanded in (False, True):
        with mock.patch(RULE, return_value=expanded):
            stage = _load(model)
            outputs.append(torch.cat([_forward(stage, (0, 0, 90)), _forward(stage, (0, 90, 100))]))
    _check_close(*outputs)


def test_mixed_microbatch(model: pathlib.Path) -> None:
    """Rows of both forms and decode rows lie side by side and do not touch each other."""
    before = [(0, 0, 30), (2, 0, 20), (3, 0, 20), (4, 0, 10)]
    mixed = [(0, 30, 1), (1, 0, 40), (2, 20, 3), (3, 20, 70), (4, 10, 1)]
    together, apart = _load(model), _load(model)
    _forward(together, *before)
    output = _forward(together, *mixed)
    with mock.patch(RULE, return_value=False):
        for entry in before:
            _forward(apart, entry)
        _check_close(torch.cat([_forward(apart, entry) for entry in mixed]), output)


def test_memory_does_not_grow_with_the_context(model: pathlib.Path) -> None:
    """A context of a million tokens is gathered and expanded piece by piece, as a short one is."""
    stage = _load(model)
    gather, take = KvPool.gather, ExpansionMemory.take
    with (
        mock.patch(RULE, return_value=True),
        mock.patch(PIECE, 32),
        mock.patch.object(KvPool, "gather", autospec=True, side_effect=gather) as gathered,
        mock.patch.object(ExpansionMemory, "take", autospec=True, side_effect=take) as taken,
    ):
        _forward(stage, (0, 0, 150), pages=range(60, 36, -2))
        _forward(stage, (0, 150, 40))
    num_pages = [len(call.args[2]) for call in gathered.call_args_list]
    num_tokens = [call.args[1] for call in taken.call_args_list]
    assert (2 * 5, 2) == (len(num_pages), max(num_pages))
    assert (2 * (5 + 2 + 5), 32) == (len(num_tokens), max(num_tokens))


def test_memory_is_reused() -> None:
    """Padding is cleared once; what is written later must not reach it."""
    memory = ExpansionMemory(num_heads=2, width=6)
    k, v = memory.take(5)
    assert ((1, 2, 5, 6), 0.0) == (v.shape, float(v.abs().max()))
    k[:, :, :, :4] = 1.0
    again, _ = memory.take(3)
    assert (k.data_ptr(), (1, 2, 3, 6)) == (again.data_ptr(), again.shape)
    larger, _ = memory.take(7)
    assert ((1, 2, 7, 6), 0.0) == (larger.shape, float(larger.abs().max()))


@pytest.mark.parametrize(("begin", "end"), [(0, 11), (0, 1), (2, 5), (4, 10), (7, 11)])
def test_latents_of_runs(begin: int, end: int) -> None:
    """Tokens of several runs, in the order of positions."""
    runs = (SlotRun(begin=8, end=11), SlotRun(begin=0, end=4), SlotRun(begin=16, end=20))
    slots = [8, 9, 10, 0, 1, 2, 3, 16, 17, 18, 19]
    context = Context(num_tokens=11, runs=runs, page_ids=())
    latents = ContextReader(_numbered_pool(), context).latents(0, begin, end)
    assert slots[begin:end] == latents[:, 0].tolist()


@pytest.mark.parametrize(("begin", "end"), [(0, 9), (0, 1), (1, 3), (2, 7), (8, 9)])
def test_latents_of_gathered_pages(begin: int, end: int) -> None:
    """The first page may be seen in part, and so may the first and the last of a piece."""
    context = Context(num_tokens=9, runs=(), page_ids=(4, 0, 2), skipped_tokens=2)
    slots = [18, 19, 0, 1, 2, 3, 8, 9, 10]
    latents = ContextReader(_numbered_pool(), context).latents(0, begin, end)
    assert slots[begin:end] == latents[:, 0].tolist()


def _numbered_pool() -> KvPool:
    """Return a pool of five pages of four tokens, each of which holds its slot."""
    shape = PoolShape(
        num_layers=1, num_planes=1, num_kv_heads=1, head_dim=2, num_pages=5, page_tokens=4
    )
    pool = KvPool(shape, torch.float32, (None,))
    slots, _ = pool.views(SlotRun(begin=0, end=20))[0]
    slots.copy_(torch.arange(20.0)[:, None])
    return pool


def _load(model: pathlib.Path) -> ModelStage:
    """Return a stage that is not the last one: it hands on every row."""
    stage = load_stage(model, layers=range(2))
    stage.allocate(num_pages=64, page_tokens=16)
    return stage


def _forward(
    stage: ModelStage, *entries: tuple[int, int, int], pages: Sequence[int] | None = None
) -> torch.Tensor:
    """Run entries of (row, start, tokens); each row has tokens and twelve pages of its own."""
    ids = [make_prompt(200, seed=row)[start : start + number] for row, start, number in entries]
    token_ids = np.array([token for some in ids for token in some], dtype=np.uint32)
    placed = tuple(
        Entry(
            row=row,
            start=start,
            num_tokens=number,
            new_page_ids=() if start else tuple(pages or range(12 * row, 12 * row + 12)),
        )
        for row, start, number in entries
    )
    order = Microbatch(epoch=1, seq_no=0, entries=placed, token_ids=token_ids, sampling=())
    out_TD = torch.empty(len(token_ids), stage.description.hidden_size)
    stage.forward(order, None, out_TD)
    return out_TD


def _check_close(expected: torch.Tensor, actual: torch.Tensor) -> None:
    span = float(expected.max() - expected.min())
    assert float((expected - actual).abs().max()) <= NOISE * span
