"""Every family answers what transformers answers, however work is cut."""

from __future__ import annotations

import itertools
import pathlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stage_worker.architectures import ARCHITECTURES
from tests.exactness import Expected, copy_pages
from tests.pipeline_of_stages import load_pipeline
from tests.random_ids import make_prompt
from tests.tiny_models import FAMILIES, make_tiny

NUM_TOKENS = 40


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tiny model of each family."""
    path = tmp_path_factory.mktemp(request.param)
    make_tiny(path, request.param)
    return path


@pytest.fixture(scope="module")
def expected(model: pathlib.Path) -> Expected:
    """Seventy tokens of prompt, forty of answer."""
    return Expected(model, make_prompt(70, seed=1), NUM_TOKENS)


def test_every_architecture_has_a_tiny_model() -> None:
    """A family without one would be served untested."""
    assert {f"{family}ForCausalLM" for family in FAMILIES} == set(ARCHITECTURES)


@pytest.mark.parametrize(
    "borders",
    [
        (0, *inner, 4)
        for num_inner in range(4)
        for inner in itertools.combinations((1, 2, 3), num_inner)
    ],
)
def test_split_equals_whole(
    model: pathlib.Path, expected: Expected, borders: tuple[int, ...]
) -> None:
    """One to four stages, with borders in every position."""
    expected.check(load_pipeline(model, borders))


@pytest.mark.parametrize("page_tokens", [16, 128])
@pytest.mark.parametrize("chunk_tokens", [1, 15, 16, 17, 64])
def test_chunked_equals_unchunked(
    model: pathlib.Path, expected: Expected, page_tokens: int, chunk_tokens: int
) -> None:
    """Chunks may end anywhere, one before, at and one behind a page border."""
    pipeline = load_pipeline(model, (0, 2, 4), num_pages=16, page_tokens=page_tokens)
    expected.check(pipeline, chunk_tokens=chunk_tokens)


@pytest.mark.parametrize("chunk_tokens", [20, 1000])
def test_scattered_pages(model: pathlib.Path, chunk_tokens: int) -> None:
    """Many pages that are not neighbours are gathered."""
    expected = Expected(model, make_prompt(300, seed=2), 8)
    pipeline = load_pipeline(model, (0, 4))
    expected.check(pipeline, page_ids=list(range(63, -1, -2)), chunk_tokens=chunk_tokens)


@pytest.mark.parametrize("page_tokens", [16, 128])
def test_copied_prefix_equals_recomputed(model: pathlib.Path, page_tokens: int) -> None:
    """A prefix that travels as page bytes into another pool gives the same answer."""
    expected = Expected(model, make_prompt(150, seed=4), 8)
    source = load_pipeline(model, (0, 1, 4), num_pages=20, page_tokens=page_tokens)
    target = load_pipeline(model, (0, 4), num_pages=20, page_tokens=page_tokens)
    source.generate(expected.prompt, 1)
    num_hit = 150 // page_tokens
    page_ids = list(range(19, 5, -1))
    copy_pages(source, target, page_ids[:num_hit])
    expected.check(target, page_ids=page_ids, first_position=num_hit * page_tokens)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    borders=st.sets(st.integers(1, 3)),
    num_tokens=st.integers(1, 150),
    chunk_tokens=st.integers(1, 160),
    page_tokens=st.sampled_from((1, 16, 128)),
    seed=st.integers(0, 1000),
)
def test_any_cut_equals_the_whole(
    model: pathlib.Path,
    borders: set[int],
    num_tokens: int,
    chunk_tokens: int,
    page_tokens: int,
    seed: int,
) -> None:
    """Random requests, splits, chunks and pages, against one stage and one chunk."""
    prompt = make_prompt(num_tokens, seed=seed)
    whole = load_pipeline(model, (0, 4), num_pages=16, page_tokens=16)
    split = load_pipeline(model, (0, *sorted(borders), 4), num_pages=160, page_tokens=page_tokens)
    pages = random.Random(seed).sample(range(160), 160)  # noqa: S311 nothing secret
    answer = split.generate(prompt, 6, chunk_tokens=chunk_tokens, page_ids=pages)
    assert whole.generate(prompt, 6) == answer
