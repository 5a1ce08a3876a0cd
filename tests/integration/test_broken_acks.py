"""A worker whose acknowledgements make no sense is lost; the scheduler and the mesh go on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.orders import Microbatch
from stage_worker.stage import StageOutput
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import mesh
from tests.scripted_stage import Script, ScriptedStage


class LyingStage(ScriptedStage):
    """Tells the given log-probabilities once."""

    lie: TokenLogprobs | None = None

    def forward(
        self,
        microbatch: Microbatch,
        hidden_in_TD: torch.Tensor | None,
        hidden_out_TD: torch.Tensor | None,
    ) -> StageOutput:
        """Play the script, and lie about it."""
        output = super().forward(microbatch, hidden_in_TD, hidden_out_TD)
        if self.lie is None:
            return output
        lie, self.lie = self.lie, None
        return dataclasses.replace(output, sampled_logprobs=(lie,))


def logprobs(value: float, num_top_ids: int, num_top_logprobs: int) -> TokenLogprobs:
    """Return one token's log-probabilities, whole or not."""
    return TokenLogprobs(
        logprobs_T=np.array([value], dtype=np.float32),
        top_ids_Tk=np.zeros((1, num_top_ids), dtype=np.uint32),
        top_logprobs_Tk=np.zeros((1, num_top_logprobs), dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (logprobs(-1.0, num_top_ids=2, num_top_logprobs=1), "log-probabilities"),
        (logprobs(float("nan"), num_top_ids=1, num_top_logprobs=1), "not all are finite"),
        (logprobs(float("-inf"), num_top_ids=0, num_top_logprobs=0), "not all are finite"),
    ],
    ids=["not whole", "nan", "infinite"],
)
async def test_broken_logprobs_cost_the_worker_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lie: TokenLogprobs, words: str
) -> None:
    """The log says why, and the request goes on once the worker has attached anew."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    stage = LyingStage(0, 1, 1, Script())
    async with mesh(folder, [stage]) as running:
        params = pb.SamplingParams(max_new_tokens=2)
        undisturbed = await running.generate(text="x", sampling_params=params)
        epoch = running.control_loop.workers.registry.epoch
        stage.lie = lie
        complete = await running.generate(text="x", sampling_params=params)
        assert complete.output_ids == undisturbed.output_ids
        assert running.control_loop.workers.registry.epoch > epoch
    logged = capsys.readouterr().out
    assert "worker broke the protocol" in logged
    assert words in logged
