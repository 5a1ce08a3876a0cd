"""Stages that hang: their computation stands still while the process lives and its beats go on.

Nobody but the scheduler's own deadlines can tell that. What such a stage answers late belongs to an
epoch that is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import REGISTRY

from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.model_stage import load_stage
from stage_worker.orders import Microbatch
from stage_worker.stage import StageOutput
from tests.bytes_tokenizer import write_bytes_folder
from tests.eventually import eventually
from tests.mesh import Mesh, mesh
from tests.recorded_stage import RecordedStage
from tests.scripted_stage import Script, ScriptedStage

_WAIT_S = 30
_FLOOR_S = 0.15
_DEADLINE_S = 10 * _FLOOR_S
"""Of every microbatch here, since nothing predicts how long one takes."""
_LAYERS = (range(2), range(2, 4))
_PROMPT_TOKENS = 300
_NEW_TOKENS = 60
_STEP_S = 0.004
"""Least that a stage takes for a step: an answer must not be complete before a late one comes."""
_WRONG_ID = 7
_PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 11},
}


class _Hang:
    """Lets the first stage that comes to some moment stand still there, once."""

    def __init__(self, is_moment: Callable[[Microbatch], bool]) -> None:
        self.is_armed = False
        self.begun, self.let_go, self.is_over = (threading.Event() for _ in range(3))
        self.stage: RecordedStage | None = None
        """Who hangs, or has hung."""
        self._is_moment = is_moment
        self._lock = threading.Lock()

    def catches(self, stage: RecordedStage, microbatch: Microbatch) -> bool:
        """Whether this stage hangs in this microbatch."""
        with self._lock:
            if not (self.is_armed and self._is_moment(microbatch)):
                return False
            self.is_armed = False
            self.stage = stage
            return True


class _LateStage(RecordedStage):
    """Answers wrongly when it answers late, so that an answer that is used shows."""

    def __init__(self, model: Path, layers: range, hang: _Hang) -> None:
        super().__init__(load_stage(model, layers=layers), delay_s=_STEP_S)
        self._hang = hang

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Compute, at once or late."""
        if not self._hang.catches(self, microbatch):
            return super().forward(microbatch, hidden_in_TD, hidden_out_TD)
        self._hang.begun.set()
        assert self._hang.let_go.wait(_WAIT_S)
        output = super().forward(microbatch, hidden_in_TD, hidden_out_TD)
        if hidden_out_TD is not None:
            hidden_out_TD.fill_(1e3)
        self._hang.is_over.set()
        return dataclasses.replace(output, sampled_ids=(_WRONG_ID,) * len(output.sampled_ids))


def _in_prefill(microbatch: Microbatch) -> bool:
    """Whether a prompt's third chunk is computed."""
    return any(entry.start == 128 and entry.num_tokens > 1 for entry in microbatch.entries)


def _in_decode(microbatch: Microbatch) -> bool:
    """Whether an output's fifteenth token is computed."""
    return any(entry.start == _PROMPT_TOKENS + 13 for entry in microbatch.entries)


async def _answer(running: Mesh, kind: str) -> list[int]:
    """Run one kind of request; every token must have come once."""
    ids = [len(kind), ord(kind[0]), *(7 * at % 251 for at in range(2, _PROMPT_TOKENS))]
    params = pb.SamplingParams(max_new_tokens=_NEW_TOKENS, ignore_eos=True, **_PARAMS[kind])
    responses = await running.responses(
        input_ids=pb.TokenIds(ids=ids), sampling_params=params, stream=True
    )
    heard = [token for each in responses for token in each.chunk.token_ids]
    assert heard == list(responses[-1].complete.output_ids)
    return heard


async def _answers(running: Mesh, first: str) -> list[list[int]]:
    """Run both kinds at once, one of them a little ahead."""
    kinds = sorted(_PARAMS, key=lambda kind: kind != first)
    return await asyncio.gather(*(_answer(running, kind) for kind in kinds))


def _num_lost(cause: str) -> float:
    return REGISTRY.get_sample_value("chunkmesh_lost_workers_total", {"cause": cause}) or 0.0


@contextlib.asynccontextmanager
async def _mesh(model: Path, stage: int, hang: _Hang) -> AsyncIterator[Mesh]:
    """Run a mesh of two stages, one of which has a spare and may hang."""
    stages = [_LateStage(model, _LAYERS[stage], hang) for _ in range(2)]
    other = RecordedStage(load_stage(model, layers=_LAYERS[1 - stage]), delay_s=_STEP_S)
    async with mesh(
        model, [*stages, other], stage_deadline_floor=_FLOOR_S, enable_prefix_caching=False
    ) as running:
        await eventually(lambda: len(running.control_loop.workers.registry.workers) == 3)
        yield running


@pytest.mark.parametrize(
    ("stage", "moment", "first"),
    [
        (0, _in_prefill, "greedy"),
        (1, _in_prefill, "seeded"),
        (0, _in_decode, "seeded"),
        (1, _in_decode, "greedy"),
    ],
)
async def test_o27_a_spare_takes_over_from_a_stage_that_hangs(
    tiny: Path, stage: int, moment: Callable[[Microbatch], bool], first: str
) -> None:
    """It is given up by its deadline, its late answer is nobody's, and idle it is a spare again."""
    hang = _Hang(moment)
    async with _mesh(tiny, stage, hang) as running:
        workers = running.control_loop.workers
        undisturbed = await _answers(running, first)
        fenced, (epoch,) = _num_lost("fenced"), workers.routes
        hang.is_armed = True
        answers = asyncio.create_task(_answers(running, first))
        assert await asyncio.to_thread(hang.begun.wait, _WAIT_S)
        begun_s = time.monotonic()
        await eventually(lambda: epoch not in workers.routes)
        waited_s = time.monotonic() - begun_s
        await eventually(lambda: len(workers.routes) == 1)
        (epoch_after,) = workers.routes
        address = f"memory:{id(hang.stage)}"
        known = [each.data_address for each in workers.registry.workers.values()]
        assert (2, False) == (len(known), address in known), "it is away as long as it hangs"
        hang.let_go.set()
        assert await asyncio.to_thread(hang.is_over.wait, _WAIT_S)
        assert not answers.done(), "its answer came too late to be of harm"
        assert undisturbed == await answers
        assert _DEADLINE_S - 0.1 <= waited_s <= 2 * _DEADLINE_S
        assert fenced + 1 == _num_lost("fenced"), "silence or a fault was noticed instead"
        await eventually(lambda: len(workers.registry.workers) == 3)
        assert [epoch_after] == list(workers.routes), "its return disturbs nobody"
        workers.lose(workers.routes[epoch_after].workers[stage].worker_id, "a test says so")
        await eventually(lambda: any(each > epoch_after for each in workers.routes))
        assert address == workers.route(max(workers.routes))[stage].data_address
        assert undisturbed == await _answers(running, first), "as good as new"
        await running.at_rest()


class _HangingStage(ScriptedStage):
    """Stands still in its first microbatch until it is let go."""

    def __init__(self) -> None:
        super().__init__(0, 1, 1, Script())
        self.begun, self.let_go = threading.Event(), threading.Event()

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Play the script, late."""
        self.begun.set()
        assert self.let_go.wait(_WAIT_S)
        return super().forward(microbatch, hidden_in_TD, hidden_out_TD)


async def test_a_stage_that_hangs_stays_away_until_it_is_done(tmp_path: Path) -> None:
    """It was given up for being late: to attach at once would let the mesh wait for it again."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    stage = _HangingStage()
    async with mesh(folder, [stage]) as running:
        workers = running.control_loop.workers
        (epoch,) = workers.routes
        request = asyncio.create_task(running.generate(text="x"))
        assert await asyncio.to_thread(stage.begun.wait, 10)
        workers.fence(epoch, 0, "it is beyond its deadline")
        await asyncio.sleep(0.4)
        assert list(workers.registry.workers) == []
        stage.let_go.set()
        await running.stands()
        assert list(workers.routes) == [epoch + 1]
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
