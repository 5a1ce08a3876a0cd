"""O30 (c, d) on a mesh that runs: long texts hold nobody up, late microbatches mix nothing up."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.orders import Microbatch
from stage_worker.stage import StageOutput
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import mesh
from tests.scripted_stage import Key, Script, ScriptedStage

NUM_REQUESTS = 6
NEW_TOKENS = 6
HELD_S = 0.1


class HoldingStage(ScriptedStage):
    """Holds every second microbatch."""

    def forward(self, microbatch: Microbatch, *args: object, **more: object) -> StageOutput:
        """Compute late."""
        if len(self.microbatches) % 2:
            time.sleep(HELD_S)
        return super().forward(microbatch, *args, **more)  # type: ignore[arg-type]


async def test_o30_held_microbatches_mix_nothing_up(tmp_path: Path) -> None:
    """Six scripts, two in a microbatch, the last stage of three late: each stream is its own."""
    ids: dict[Key, list[int]] = {
        seed: [65 + 8 * seed + i for i in range(NEW_TOKENS)] for seed in range(NUM_REQUESTS)
    }
    script = Script(ids=ids)
    stages = [
        *(ScriptedStage(layer, layer + 1, 3, script) for layer in range(2)),
        HoldingStage(2, 3, 3, script),
    ]
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 3})
    async with mesh(folder, stages, pp_max_micro_batch_size=2) as running:
        ended = await asyncio.gather(
            *(
                running.generate(
                    text=f"prompt {seed}",
                    sampling_params=pb.SamplingParams(
                        seed=seed, max_new_tokens=NEW_TOKENS, ignore_eos=True
                    ),
                )
                for seed in range(NUM_REQUESTS)
            )
        )
        await running.at_rest()
    assert list(ids.values()) == [list(each.output_ids) for each in ended]
    assert 2 == max(len(each.entries) for each in stages[-1].microbatches)
    entries = [[each.entries for each in stage.microbatches] for stage in stages]
    assert entries[0] == entries[1] == entries[2]


async def test_o30_a_long_text_does_not_hold_up_the_health_probe(tmp_path: Path) -> None:
    """5 MB are tokenized and refused for want of pages; without answers somebody restarts the mesh.

    Each is to come within 0.2 s. Counted is this process's processor time, which is not others';
    five times as much is allowed, for the tokenizer's threads work meanwhile.
    """
    folder = write_bytes_folder(
        tmp_path / "model", config={"num_hidden_layers": 1, "max_position_embeddings": 8 << 20}
    )
    stage = ScriptedStage(0, 1, 1, Script())
    async with mesh(folder, [stage]) as running:
        health: Any = health_pb2_grpc.HealthStub(running.channel)
        call = running.stub.Generate(pb.GenerateRequest(text="five MB of text " * 327_680))
        refused = asyncio.ensure_future(call.read())
        slowest_s, num_probes = 0.0, 0
        while not refused.done():
            started_s = time.process_time()
            await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
            slowest_s, num_probes = max(slowest_s, time.process_time() - started_s), num_probes + 1
            await asyncio.sleep(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await refused
    assert grpc.StatusCode.INVALID_ARGUMENT == refusal.value.code()
    assert num_probes >= 10
    assert slowest_s < 1.0
