"""Every family answers what transformers answers, however work is cut."""

from __future__ import annotations

import itertools
import pathlib

import pytest

from stage_worker.architectures import ARCHITECTURES
from tests.exactness import Expected, copy_pages
from tests.pipeline_of_stages import PipelineOfStages, load_pipeline
from tests.random_ids import make_prompt
from tests.tiny_models import FAMILIES, make_tiny

NUM_TOKENS = 40
PAGE_SIZES = (16, 128)
BORDERS = [
    (0, *inner, 4)
    for num_inner in range(4)
    for inner in itertools.combinations((1, 2, 3), num_inner)
]
"""One to four stages, with borders in every position."""


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


@pytest.fixture(scope="module")
def long_expected(model: pathlib.Path) -> Expected:
    """A hundred and fifty tokens of prompt: longer than the largest page."""
    return Expected(model, make_prompt(150, seed=4), 8)


def test_every_architecture_has_a_tiny_model() -> None:
    """A family without one would be served untested."""
    assert {f"{family}ForCausalLM" for family in FAMILIES} == set(ARCHITECTURES)


@pytest.mark.parametrize("borders", BORDERS)
def test_split_equals_whole(
    model: pathlib.Path, expected: Expected, borders: tuple[int, ...]
) -> None:
    """One to four stages, with borders in every position."""
    expected.check(load_pipeline(model, borders))


@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
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


@pytest.fixture(scope="module")
def donors(model: pathlib.Path, long_expected: Expected) -> dict[int, PipelineOfStages]:
    """For each page size two stages whose first pages hold the long prompt, computed in chunks."""
    donors = {}
    for page_tokens in PAGE_SIZES:
        pipeline = load_pipeline(model, (0, 3, 4), num_pages=20, page_tokens=page_tokens)
        pipeline.generate(long_expected.prompt, 1, chunk_tokens=50)
        donors[page_tokens] = pipeline
    return donors


@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
@pytest.mark.parametrize("borders", BORDERS)
def test_hit_equals_recomputed(
    model: pathlib.Path,
    long_expected: Expected,
    donors: dict[int, PipelineOfStages],
    borders: tuple[int, ...],
    page_tokens: int,
) -> None:
    """A prefix that travels as page bytes into another pool and split gives the same answer."""
    target = load_pipeline(model, borders, num_pages=20, page_tokens=page_tokens)
    check_hit(long_expected, donors[page_tokens], target, 17)


@pytest.mark.slow
@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
@pytest.mark.parametrize("chunk_tokens", [15, 16, 17, 64, 127, 128, 129, 1000])
@pytest.mark.parametrize("borders", BORDERS)
def test_everything_at_once(
    model: pathlib.Path,
    long_expected: Expected,
    donors: dict[int, PipelineOfStages],
    borders: tuple[int, ...],
    chunk_tokens: int,
    page_tokens: int,
) -> None:
    """Every split with every cut and page size, first computed and then hit."""
    pipeline = load_pipeline(model, borders, num_pages=20, page_tokens=page_tokens)
    long_expected.check(pipeline, chunk_tokens=chunk_tokens)
    check_hit(long_expected, donors[page_tokens], pipeline, chunk_tokens)


def check_hit(
    expected: Expected, donor: PipelineOfStages, target: PipelineOfStages, chunk_tokens: int
) -> None:
    """Fill target's last pages with as much of the prompt as can be hit, and compare the rest."""
    num_hit = (len(expected.prompt) - 1) // target.page_tokens
    page_ids = list(range(target.num_pages - 1, -1, -1))
    copy_pages(donor, target, page_ids[:num_hit])
    expected.check(
        target,
        page_ids=page_ids,
        first_position=num_hit * target.page_tokens,
        chunk_tokens=chunk_tokens,
    )
