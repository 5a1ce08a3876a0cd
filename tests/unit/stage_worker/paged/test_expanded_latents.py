"""Chunks attend to expanded latents, with the kernel's definition in place of the kernel."""

from __future__ import annotations

import pathlib
import sys
import types

import pytest
import torch

from stage_worker.element_type import DtypeChoice
from stage_worker.kernels import reference
from stage_worker.kernels.reference import PagedContexts, QueryRows
from stage_worker.paged import backends, expanded_latents
from stage_worker.paged.load import load_paged_stage
from tests.exactness import Expected, recorded_logits
from tests.narrow_models import deviation, make_narrow_without_choice, reference_logits
from tests.pipeline_of_stages import PipelineOfStages, Work, load_pipeline, sampling_row
from tests.random_ids import make_prompt
from tests.tiny_models import make_tiny

CPU = torch.device("cpu")


class SequencesPrefill:
    """Stands in for flash_prefill's."""

    def __call__(
        self,
        q_THd: torch.Tensor,
        rows: QueryRows,
        k_nHd: torch.Tensor,
        v_nHe: torch.Tensor,
        contexts: PagedContexts,
        scale: float,
    ) -> torch.Tensor:
        """Compute what FlashAttention computes."""
        return reference.sequences_prefill(q_THd, rows, k_nHd, v_nHe, contexts.num_keys_B, scale)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chunks be expanded as on a GPU, in memory for two of four heads."""
    flash_prefill = types.ModuleType("flash_prefill")
    vars(flash_prefill).update(SequencesPrefill=SequencesPrefill)
    monkeypatch.setitem(sys.modules, "stage_worker.kernels.flash_prefill", flash_prefill)
    monkeypatch.setattr(backends, "_why_not_flash", lambda _about: iter(()))
    monkeypatch.setattr(backends, "_wave_tokens", lambda _config, _device: 0)
    monkeypatch.setattr(expanded_latents, "_MOST_NUMBERS", 2 * 70 * (40 + 20))


@pytest.fixture(params=["DeepseekV2", "DeepseekV3"])
def model_path(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """Write a tiny model."""
    make_tiny(tmp_path, request.param)
    return tmp_path


def pipeline_of(model_path: pathlib.Path, dtype: DtypeChoice = "float32") -> PipelineOfStages:
    """Load it over paged operations."""
    stage = load_paged_stage(model_path, layers=range(4), device=CPU, dtype=dtype)
    return PipelineOfStages([stage], num_pages=32, page_tokens=16)


def test_chunks_are_exact(model_path: pathlib.Path) -> None:
    """Whole, and in chunks whose borders are not those of pages, in turns of heads."""
    expected = Expected(model_path, make_prompt(70, seed=5), 8)
    expected.check(pipeline_of(model_path))
    expected.check(pipeline_of(model_path), chunk_tokens=23)


def test_sequences_share_a_microbatch(model_path: pathlib.Path) -> None:
    """Latents of sequences are gathered behind one another, without the rest of their pages."""
    works = [
        Work(
            row=row,
            start=0,
            token_ids=tuple(make_prompt(length, seed=row)),
            new_page_ids=pages,
            sampling=sampling_row(),
        )
        for row, (length, pages) in enumerate(((21, (3, 9)), (33, (1, 8, 2)), (5, (7,))))
    ]
    with recorded_logits() as together:
        pipeline_of(model_path).run(*works)
    exact = load_pipeline(model_path, (0, 4))
    with recorded_logits() as alone:
        for work in works:
            exact.run(work)
    torch.testing.assert_close(torch.cat(together), torch.cat(alone), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["DeepseekV2", "DeepseekV3"])
def test_narrow_arithmetic_is_as_good_as_transformers(family: str, tmp_path: pathlib.Path) -> None:
    """Expanded keys and values are rounded once more than latents, and that does not show.

    Logits are off by 0.38 and 0.47 % of their range, those of transformers in bfloat16 by 0.57
    and 0.71 %.
    """
    make_narrow_without_choice(tmp_path, family, "bfloat16")
    prompt = make_prompt(150, seed=1)
    pipeline = pipeline_of(tmp_path, "bfloat16")
    with recorded_logits() as found:
        for start in range(0, len(prompt), 10):
            chunk = Work(
                row=0,
                start=start,
                token_ids=tuple(prompt[start : start + 10]),
                new_page_ids=() if start else tuple(range(10)),
                sampling=sampling_row(),
            )
            pipeline.run(chunk)
    exact_nV, peer_nV = (
        reference_logits(tmp_path, dtype, prompt[:10], [*prompt[10:], 0])[::10]
        for dtype in ("float32", "bfloat16")
    )
    assert 0 < deviation(torch.cat(found), exact_nV) < deviation(peer_nV, exact_nV)
