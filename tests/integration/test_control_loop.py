"""What the control loop must survive: its own standstill, and request ids that come again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import mesh
from tests.scripted_stage import Script, scripted_stages


def stand_still(duration_s: float) -> None:
    """Block the event loop, as a process that was stopped or had no processor does."""
    time.sleep(duration_s)


async def test_a_standstill_of_the_scheduler_is_no_silence_of_its_workers(tmp_path: Path) -> None:
    """A huge prompt or a paused machine must not cost everybody's requests."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})
    stages = scripted_stages(2, Script(delay_s=0.01))
    async with mesh(folder, stages, worker_timeout=0.7) as running:
        params = pb.SamplingParams(max_new_tokens=100)
        request = asyncio.create_task(running.generate(text="x", sampling_params=params))
        await asyncio.to_thread(stages[0].wait_for, 3)
        epoch = running.control_loop.engine.snapshot().epoch
        stand_still(1.5)
        complete = await request
        assert epoch == running.control_loop.engine.snapshot().epoch
    assert complete.completion_tokens == 100
