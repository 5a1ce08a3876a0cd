"""What the control loop must survive: its own standstill, and request ids that come again."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import numpy as np
import pytest

from chunkmesh.transports.memory import MemoryNetwork
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.detokenizer import Detokenizer
from scheduler.events import RequestSpec, Sampling
from scheduler.output_text import OutputText
from scheduler.request_stream import RequestStream
from scheduler.serve import running
from scheduler.settings import SchedulerSettings
from scheduler.stop_strings import StopMatcher
from stage_worker.worker import Capacity
from tests.bytes_tokenizer import bytes_tokenizer, write_bytes_folder
from tests.eventually import eventually
from tests.mesh import mesh, run_worker
from tests.scripted_stage import Script, scripted_stages


def stand_still(duration_s: float) -> None:
    """Block the event loop, as a process that was stopped or had no processor does."""
    time.sleep(duration_s)


async def test_a_standstill_of_the_scheduler_is_no_silence_of_its_workers(tmp_path: Path) -> None:
    """A huge prompt or a paused machine must not cost everybody's requests."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})
    stages = scripted_stages(2, Script(delay_s=0.01))
    async with mesh(folder, stages, worker_timeout=0.7) as made:
        params = pb.SamplingParams(max_new_tokens=100)
        request = asyncio.create_task(made.generate(text="x", sampling_params=params))
        await asyncio.to_thread(stages[0].wait_for, 3)
        epoch = made.control_loop.engine.snapshot().epoch
        stand_still(1.5)
        complete = await request
        assert epoch == made.control_loop.engine.snapshot().epoch
    assert complete.completion_tokens == 100


async def test_the_late_end_of_a_call_does_not_end_the_next_request_of_its_id(
    tmp_path: Path,
) -> None:
    """A call may outlive its request, as when nobody reads it; its id is free by then."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    stages = scripted_stages(1, Script(delay_s=0.01))
    async with mesh(folder, stages) as made:
        loop = made.control_loop
        first, second = (RequestStream(prompt_tokens=1, arrived_s=0.0) for _ in range(2))
        loop.submit(_spec("same"), first)
        loop.abort("same")
        track = loop.submit(_spec("same"), second)
        loop.forget("same", first)
        assert "same" in loop.requests
        async with asyncio.timeout(10):
            while not second.has_finished:
                assert (await second.next_update()).error is None
        assert second.finish_reason == "length"
        assert len(track.timings()) == 5
        await made.at_rest()


def _spec(request_id: str) -> RequestSpec:
    """Ask for five tokens."""
    return RequestSpec(
        request_id=request_id,
        prompt_ids=np.array([65], dtype=np.uint32),
        namespace=bytes(32),
        digests=(),
        max_new_tokens=5,
        min_new_tokens=0,
        end_ids=frozenset(),
        sampling=Sampling(temperature=0, top_p=1, top_k=0, min_p=0, seed=1),
        texts=(OutputText(Detokenizer(bytes_tokenizer()), StopMatcher(())),),
    )


async def test_the_end_of_a_scheduler_with_workers_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """An orderly restart must not look like a crash: workers hear why, nothing is torn off."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    stage = scripted_stages(1, Script())[0]
    settings = SchedulerSettings(
        model_path=folder, port=0, internal_port=0, http_port=0, drain_timeout=1.0
    )
    async with running(settings) as scheduler:
        network = MemoryNetwork()
        worker = asyncio.create_task(
            run_worker(stage, network, scheduler.internal_address, Capacity(kv_tokens=4096))
        )
        await eventually(lambda: not scheduler.control_loop.unready_reason())
    logged = ""

    def is_told() -> bool:
        nonlocal logged
        logged += capsys.readouterr().out
        return "the scheduler is shutting down" in logged + caplog.text

    await eventually(is_told)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    gc.collect()
    logged += capsys.readouterr().out + caplog.text
    assert not [line for line in ("Traceback", "CancelledError", "Task was") if line in logged]
