"""What a stage runs before it serves, and what is told of it."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import pytest
import torch

from stage_worker.orders import Microbatch
from stage_worker.paged.load import load_paged_stage
from stage_worker.paged.stage import PagedStage
from stage_worker.paged.warm_up import WarmUp
from stage_worker.paged.warm_up_plan import DummyForward, batch_sizes, forwards
from tests.repeated_steps import RepeatingRecorder, load_replayable
from tests.tiny_models import make_tiny


@pytest.mark.parametrize(
    ("num_sms", "sizes"),
    [
        (132, (1, 128, 1024, 2112, 8448)),  # H100 and H200
        (148, (1, 128, 1152, 2368, 9472)),  # B200
        (78, (1, 128, 576, 1216, 4992)),  # H20
        (8, (1, 128, 256, 512)),
    ],
)
def test_batch_sizes(num_sms: int, sizes: Sequence[int]) -> None:
    """They are {1, 128, max(sms/8, 2) 64, max(sms/4, 4) 64, sms 64}, each once."""
    assert batch_sizes(num_sms) == sizes


def test_chunks_and_rows_of_every_size() -> None:
    """Decode has few rows besides; a chunk of one token is a decode row, and one has a prefix."""
    plan = list(forwards((1, 128, 256)))
    rows = [each.num_tokens for each in plan if each.is_decode]
    chunks = [(each.num_tokens, each.start) for each in plan if not each.is_decode]
    assert rows == [1, 2, 4, 8, 16, 32, 128, 256]
    assert chunks == [(2, 0), (128, 0), (256, 0), (128, 128)]


def test_more_chunks_are_among_the_others() -> None:
    """Those that eight-bit products have kernels of their own for."""
    plan = list(forwards((1, 128), more_chunks=(64, 128, 192), decodes=False))
    assert [each.num_tokens for each in plan] == [2, 64, 128, 192, 128]


def test_a_role_runs_only_what_it_needs() -> None:
    """A worker that only extends, or only decodes, does not wait for the other's kernels."""
    sizes = batch_sizes(132)
    assert all(each.is_decode for each in forwards(sizes, extends=False))
    assert not any(each.is_decode for each in forwards(sizes, decodes=False))


def watch(stage: PagedStage, warm_up: WarmUp) -> list[tuple[int, str, float | None]]:
    """Note the tokens of each microbatch that runs, and what /ready would say."""
    seen: list[tuple[int, str, float | None]] = []
    launch = stage.launch

    def watched(microbatch: Microbatch, *hidden: torch.Tensor | None) -> object:
        ready = warm_up.readiness()
        assert ready is not None
        assert not ready.ready
        seen.append((microbatch.num_tokens, f"{ready.state}: {ready.reason}", ready.progress))
        return launch(microbatch, *hidden)

    stage.launch = watched  # type: ignore[assignment, method-assign]
    return seen


@pytest.mark.parametrize("layers", [range(2), range(1, 3), range(2, 4)])
def test_each_stage_warms_up_alone(tmp_path: pathlib.Path, layers: range) -> None:
    """First, middle and last stages need no other one, and /ready says how far they are."""
    make_tiny(tmp_path, "Qwen3")
    stage = load_paged_stage(tmp_path, layers=layers, device=torch.device("cpu"))
    warm_up = WarmUp(tuple(forwards((1, 150), decodes=True)))
    seen = watch(stage, warm_up)
    warm_up.run(stage)
    assert [num_tokens for num_tokens, *_ in seen] == [1, 2, 4, 8, 16, 32, 150, 2, 150, 150]
    assert seen[0][1:] == ("warming up: kernels are compiled: 1 decode rows", 0.0)
    assert seen[9][1:] == ("warming up: kernels are compiled: 150 tokens behind 128", 9 / 10)
    assert warm_up.readiness() is None


def test_errors_end_the_warm_up(tmp_path: pathlib.Path) -> None:
    """A kernel that does not compile must not be found by the first request."""
    make_tiny(tmp_path, "Qwen3")
    stage = load_replayable(tmp_path, range(4))
    recorder = RepeatingRecorder()
    stage.use_replays(4, recorder)
    recorder.fault = RuntimeError("no kernel image")
    warm_up = WarmUp((DummyForward(num_tokens=2, is_decode=True),))
    with pytest.raises(RuntimeError, match="no kernel image"):
        warm_up.run(stage)
    assert warm_up.readiness() is not None


def test_off_runs_nothing() -> None:
    """Then the first requests compile, and the worker is ready at once."""
    warm_up = WarmUp(())
    assert warm_up.readiness() is None
