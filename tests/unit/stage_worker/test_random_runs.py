"""Random requests through random splits, cuts, pages and hits give the whole model's answers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from stage_worker.model_stage import load_stage
from stage_worker.stage import Stage
from tests.exactness import check_same, has_near_tie
from tests.interleaved_jobs import Job, run_jobs
from tests.pipeline_of_stages import PipelineOfStages
from tests.random_ids import make_prompt
from tests.reference import Answer, Reference
from tests.tiny_models import FAMILIES, make_tiny

MAX_REQUESTS = 4
MAX_TURNS = 5
SPARE_PAGES = 3
Prefix = tuple[int, ...]
Pages = Mapping[Prefix, Sequence[npt.NDArray[np.uint8]]]
"""Bytes of each layer of the page that ends with a prefix."""
_settings = functools.partial(
    settings,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # shrinking would take longer than the test may
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, first asked cold, then with a part of its answer and with a hit."""

    seed: int
    """Requests of one seed have one's prompt as a prefix of the other's."""
    prompt_tokens: int
    num_tokens: int
    known_tokens: int
    """Of the answer that the second prompt ends with."""
    hit: float
    """Share of the second prompt's whole pages that are hit."""
    cuts: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids of the first prompt."""
        return tuple(make_prompt(self.prompt_tokens, seed=self.seed))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that is random of one example; pairs are for the cold and the second run."""

    asked: tuple[Asked, ...]
    page_tokens: int
    borders: tuple[tuple[int, ...], tuple[int, ...]]
    turns: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    page_order: int
    """Seed of the permutation of the pages."""


def pairs(each: st.SearchStrategy[tuple[int, ...]]) -> st.SearchStrategy[tuple[Prefix, Prefix]]:
    """Draw one for the cold run and one for the second."""
    return st.tuples(each, each)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """Draw a request."""
    num_tokens = draw(st.integers(1, 24))
    return Asked(
        seed=draw(st.integers(0, 2)),
        prompt_tokens=draw(st.integers(1, 160)),
        num_tokens=num_tokens,
        known_tokens=draw(st.integers(0, num_tokens - 1)),
        hit=draw(st.sampled_from((0.0, 0.5, 1.0))),
        cuts=draw(pairs(st.lists(st.integers(1, 170), min_size=1, max_size=4).map(tuple))),
    )


BORDERS = st.sets(st.integers(1, 3)).map(lambda inner: (0, *sorted(inner), 4))
TURNS = st.lists(
    st.lists(st.integers(0, MAX_REQUESTS - 1), unique=True, min_size=1).map(tuple),
    min_size=1,
    max_size=MAX_TURNS,
).map(tuple)
RUNS = st.builds(
    Run,
    asked=st.lists(asked(), min_size=1, max_size=MAX_REQUESTS).map(tuple),
    page_tokens=st.sampled_from((16, 128, 1, 7, 64)),
    borders=pairs(BORDERS),
    turns=st.tuples(TURNS, TURNS),
    page_order=st.integers(0, 1000),
)


class TinyModel:
    """A tiny model in transformers and as stages of every range, loaded when needed."""

    def __init__(self, path: pathlib.Path) -> None:
        self._reference = Reference(path)
        self.answer: Callable[[Prefix, int], Answer] = functools.cache(self._reference.answer)
        self._stage: Callable[[int, int], Stage] = functools.cache(
            lambda first, last: load_stage(path, layers=range(first, last))
        )

    def pipeline(
        self, borders: Sequence[int], num_pages: int, page_tokens: int
    ) -> PipelineOfStages:
        """Make a pipeline whose pages all hold NaN; it is valid until the next one is made."""
        pipeline = PipelineOfStages(
            [self._stage(first, last) for first, last in itertools.pairwise(borders)],
            num_pages=num_pages,
            page_tokens=page_tokens,
        )
        nan = np.full(pipeline.stages[0].page_layer_bytes(), 0xFF, dtype=np.uint8)
        for layer, page_id in itertools.product(range(4), range(num_pages)):
            pipeline.stage_of(layer).write_page(layer, page_id, nan)
        return pipeline


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A tiny model of each family."""
    path = tmp_path_factory.mktemp(request.param)
    make_tiny(path, request.param)
    return TinyModel(path)


@_settings(max_examples=8)
@given(run=RUNS)
def test_any_run_equals_the_whole(model: TinyModel, run: Run) -> None:
    """What a request is answered depends on nothing but its prompt."""
    check_run(model, run)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@_settings(max_examples=100)
@given(run=RUNS)
def test_many_runs_equal_the_whole(model: TinyModel, run: Run) -> None:
    """The same, with more examples."""
    check_run(model, run)


def check_run(model: TinyModel, run: Run) -> None:
    """Compare the whole model, a cold run, and one that goes on from the cold one's pages."""
    expected = [model.answer(each.prompt, each.num_tokens) for each in run.asked]
    assume(not any(map(has_near_tie, expected)))
    for each, answer in zip(run.asked, expected, strict=True):
        check_same(answer, whole_answer(model, each))
    pages = cold_run(model, run, expected)
    second_run(model, run, expected, pages)


def whole_answer(model: TinyModel, each: Asked) -> Answer:
    """Answer a request alone in one stage, its prompt in one chunk."""
    pipeline = model.pipeline((0, 4), 12, 16)
    job = Job(
        prompt=each.prompt,
        num_tokens=each.num_tokens,
        cuts=(len(each.prompt),),
        page_ids=tuple(range(12)),
    )
    [answer] = run_jobs(pipeline, [job], [(0,)])
    return answer


def cold_run(model: TinyModel, run: Run, expected: Sequence[Answer]) -> Pages:
    """Compare all requests without hits; return every whole page that they filled."""
    free = free_pages(run)
    jobs = [
        Job(
            prompt=each.prompt,
            num_tokens=each.num_tokens,
            cuts=each.cuts[0],
            page_ids=tuple(free.pop() for _ in range(num_pages(each, run.page_tokens))),
        )
        for each in run.asked
    ]
    pipeline = model.pipeline(run.borders[0], len(free_pages(run)), run.page_tokens)
    answers = run_jobs(pipeline, jobs, run.turns[0])
    for answer, right in zip(answers, expected, strict=True):
        check_same(right, answer)
    pages: dict[Prefix, list[npt.NDArray[np.uint8]]] = {}
    for job, answer in zip(jobs, answers, strict=True):
        computed = (*job.prompt, *answer.ids[:-1])
        for index in range(len(computed) // run.page_tokens):
            pages[computed[: (index + 1) * run.page_tokens]] = [
                pipeline.stage_of(layer).read_page(layer, job.page_ids[index]).copy()
                for layer in range(4)
            ]
    return pages


def second_run(model: TinyModel, run: Run, expected: Sequence[Answer], pages: Pages) -> None:
    """Compare all requests with hits, whose pages are shared where their prefixes are."""
    free = free_pages(run)
    pipeline = model.pipeline(run.borders[1], len(free), run.page_tokens)
    placed: dict[Prefix, int] = {}
    jobs = []
    for each, answer in zip(run.asked, expected, strict=True):
        prompt = (*each.prompt, *answer.ids[: each.known_tokens])
        num_hit = int(each.hit * ((len(prompt) - 1) // run.page_tokens))
        page_ids = []
        for end in range(run.page_tokens, (num_hit + 1) * run.page_tokens, run.page_tokens):
            prefix = prompt[:end]
            if prefix not in placed:
                placed[prefix] = free.pop()
                for layer, data in enumerate(pages[prefix]):
                    pipeline.stage_of(layer).write_page(layer, placed[prefix], data)
            page_ids.append(placed[prefix])
        while len(page_ids) < num_pages(each, run.page_tokens):
            page_ids.append(free.pop())
        jobs.append(
            Job(
                prompt=prompt,
                num_tokens=each.num_tokens - each.known_tokens,
                cuts=each.cuts[1],
                page_ids=tuple(page_ids),
                hit_tokens=num_hit * run.page_tokens,
            )
        )
    answers = run_jobs(pipeline, jobs, run.turns[1])
    for each, answer, right in zip(run.asked, answers, expected, strict=True):
        check_same(right.behind(each.known_tokens), answer)


def num_pages(each: Asked, page_tokens: int) -> int:
    """Pages of all positions that are computed."""
    return -(-(each.prompt_tokens + each.num_tokens - 1) // page_tokens)


def free_pages(run: Run) -> list[int]:
    """Return all pages of a pool that is a little too large, in the run's random order."""
    total = sum(num_pages(each, run.page_tokens) for each in run.asked) + SPARE_PAGES
    return random.Random(run.page_order).sample(range(total), total)  # noqa: S311 nothing secret
