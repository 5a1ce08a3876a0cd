"""From what workers measure to what the engine plans with, and what operators see of it."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chunkmesh.errors import ConfigError
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.actions import Action
from scheduler.engine import Engine
from scheduler.events import Event, RouteFormed
from scheduler.latency_file import parse_latency_file
from scheduler.latency_model import PipelineLatency, StageLatency, Work
from scheduler.serve import running
from scheduler.settings import SchedulerSettings
from stage_worker.profile_plan import ProfileLimits
from tests.bytes_tokenizer import write_bytes_folder
from tests.cli_run import run_cli
from tests.mesh import Mesh, mesh
from tests.timed_stage import ScriptedClock, TimedProfile, TimedStage

_TRUTHS = (
    StageLatency(fixed_ms=2.0, ms_per_token=0.5, ms_per_pair=1e-5, ms_per_row=3.0),
    StageLatency(fixed_ms=4.0, ms_per_token=0.8, ms_per_pair=2e-5, ms_per_row=5.0),
)
_LIMITS = ProfileLimits(
    max_chunk_tokens=256, max_prefix_tokens=2048, max_rows=8, budget_ms=60_000.0
)


_DICE = random.Random(5)  # noqa: S311 - noise, not secrets
_STEADY = tuple(truth.microbatch_ms for truth in _TRUTHS)


def noise_ms(work: Work) -> float:
    """Take up to ten times as long as before for the same work."""
    return _TRUTHS[0].microbatch_ms(work) * _DICE.uniform(1, 10)


def folder(tmp_path: Path) -> Path:
    """Write a model folder of two layers."""
    return write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})


def timed(
    times_ms: tuple[Callable[[Work], float], ...],
) -> tuple[list[TimedStage], list[TimedProfile]]:
    """Make stages whose work takes so long, and their profiles."""
    clocks = [ScriptedClock() for _ in times_ms]
    stages = [
        TimedStage(layer, len(times_ms), time_ms, clock)
        for layer, (time_ms, clock) in enumerate(zip(times_ms, clocks, strict=True))
    ]
    return stages, [TimedProfile(_LIMITS, clock) for clock in clocks]


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> list[RouteFormed]:
    """Record the routes that engines are told of."""
    seen: list[RouteFormed] = []

    def handle(engine: Engine, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, RouteFormed):
            seen.append(event)
        return original(engine, event, now_s)

    original = Engine.handle
    monkeypatch.setattr(Engine, "handle", handle)
    return seen


async def server_info(running_mesh: Mesh) -> pb.GetServerInfoResponse:
    """Ask for the state."""
    return await running_mesh.stub.GetServerInfo(pb.GetServerInfoRequest())


def metrics(running_mesh: Mesh) -> str:
    """Read the metrics of the side door."""
    url = f"http://{running_mesh.http_address}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode()
    return text


async def test_an_accepted_profile_reaches_the_engine(
    tmp_path: Path, formed: list[RouteFormed]
) -> None:
    """Stages of known times: the fit is theirs, for work that was never measured too."""
    stages, profiles = timed(_STEADY)
    async with mesh(folder(tmp_path), stages, profiles=profiles) as running_mesh:
        info = await server_info(running_mesh)
        told = await asyncio.to_thread(metrics, running_mesh)
        complete = await running_mesh.generate(
            text="x" * 200, sampling_params={"max_new_tokens": 2}, return_timeline=True
        )
        told_then = await asyncio.to_thread(metrics, running_mesh)
    assert 2 == complete.completion_tokens
    assert ("optimal", "") == (info.chunk_strategy, info.chunk_strategy_reason)
    assert 'chunkmesh_chunk_strategy{chunkmesh_chunk_strategy="optimal"} 1.0' in told
    assert "chunkmesh_chunk_strategy_fallback 0.0" in told
    for timing in complete.timeline:
        assert len(timing.predicted_us) == 2
        assert all(timing.predicted_us)
    assert 'chunkmesh_predicted_over_measured_ratio_count{stage="1"}' in told_then
    assert [("profile", ""), ("profile", "")] == [(fit.source, fit.refused) for fit in info.fits]
    assert [(0, 1), (1, 2)] == [(fit.layers.first, fit.layers.last) for fit in info.fits]
    assert all(fit.median_error < 0.02 for fit in info.fits)
    latency = formed[-1].latency
    assert latency is not None
    for truth, stage, fit in zip(_TRUTHS, latency.stages, info.fits, strict=True):
        assert pytest.approx(truth.chunk_ms(1000, 1100), rel=0.02) == stage.chunk_ms(1000, 1100)
        assert pytest.approx(stage.ms_per_token) == fit.terms.ms_per_token
    assert 'chunkmesh_stage_fit_accepted{stage="1"} 1.0' in told
    assert 'chunkmesh_stage_fit_median_error_ratio{stage="0"}' in told


async def test_a_noisy_stage_is_refused_and_says_so(
    tmp_path: Path, formed: list[RouteFormed]
) -> None:
    """No plan is made of noise, and an operator sees of which stage and why; requests run."""
    stages, profiles = timed((_STEADY[0], noise_ms))
    with capture_logs() as logs:
        async with mesh(folder(tmp_path), stages, profiles=profiles) as running_mesh:
            info = await server_info(running_mesh)
            told = await asyncio.to_thread(metrics, running_mesh)
            lines = await status(running_mesh)
            complete = await running_mesh.generate(text="x", sampling_params={"max_new_tokens": 2})
    assert 2 == complete.completion_tokens
    assert formed[-1].latency is None
    assert "fixed" == info.chunk_strategy
    assert "optimal needs the latency of all stages" in info.chunk_strategy_reason
    assert "chunkmesh_chunk_strategy_fallback 1.0" in told
    (replaced,) = [line for line in logs if line["event"] == "chunk strategy replaced"]
    assert info.chunk_strategy_reason == replaced["reason"]
    assert "" == info.fits[0].refused
    assert "error at unseen points" in info.fits[1].refused
    (line,) = [line for line in logs if line["event"] == "stage latency refused"]
    assert (1, "warning", info.fits[1].refused) == (
        line["stage"],
        line["log_level"],
        line["reason"],
    )
    assert 'chunkmesh_stage_fit_accepted{stage="1"} 0.0' in told
    assert f"not used: {info.fits[1].refused}" in lines


async def test_without_profiles_nothing_is_planned_with(
    tmp_path: Path, formed: list[RouteFormed]
) -> None:
    """--profile off is a choice, not a fault."""
    stages, _ = timed(_STEADY)
    with capture_logs() as logs:
        async with mesh(folder(tmp_path), stages) as running_mesh:
            info = await server_info(running_mesh)
    assert formed[-1].latency is None
    assert ["its worker measured nothing"] * 2 == [fit.refused for fit in info.fits]
    assert not any(fit.HasField("terms") for fit in info.fits)
    assert "stage latency refused" not in {line["event"] for line in logs}
    (replaced,) = [line for line in logs if line["event"] == "chunk strategy replaced"]
    assert ("info", "fixed") == (replaced["log_level"], replaced["strategy"])


async def status(running_mesh: Mesh, *flags: str) -> str:
    """Run chunkmesh status and return what it prints."""
    words = ["status", "--server", str(running_mesh.address), *flags]
    result = await asyncio.to_thread(run_cli, *words)
    return result.output


async def test_fits_can_be_saved_and_given(tmp_path: Path, formed: list[RouteFormed]) -> None:
    """What one mesh has measured, another one plans with, without measuring."""
    saved = tmp_path / "latency.json"
    stages, profiles = timed(_STEADY)
    async with mesh(folder(tmp_path), stages, profiles=profiles) as running_mesh:
        lines = await status(running_mesh, f"--save-latency-model={saved}")
    assert "stage 0   latency by profile, error" in lines
    file = parse_latency_file(saved.read_text(), name="saved")
    latency = formed[-1].latency
    assert latency is not None
    assert latency.stages == tuple(stage.latency for stage in file.stages)
    stages, _ = timed(_STEADY)
    async with mesh(folder(tmp_path), stages, latency_model=saved) as running_mesh:
        info = await server_info(running_mesh)
    assert latency == formed[-1].latency
    assert ["file", "file"] == [fit.source for fit in info.fits]


async def test_refused_fits_are_not_saved(tmp_path: Path) -> None:
    """A file goes past the gate, so nothing that the gate refused may get into one."""
    saved = tmp_path / "latency.json"
    stages, profiles = timed((noise_ms, _STEADY[1]))
    async with mesh(folder(tmp_path), stages, profiles=profiles) as running_mesh:
        lines = await status(running_mesh, f"--save-latency-model={saved}")
    assert "no latency model to save: stage 0: " in lines
    assert not saved.exists()


def latency_file(**changes: object) -> str:
    """Return the text of a file of one stage of two layers."""
    stage = {"first_layer": 0, "last_layer": 1, "ms_per_token": 4.0, "ms_per_pair": 1e-4}
    fields = {"format": "chunkmesh-latency", "version": 1, "model": "m", "device": "h200"}
    return json.dumps(fields | {"stages": [stage | changes]})


async def test_a_file_goes_before_profiles(tmp_path: Path, formed: list[RouteFormed]) -> None:
    """Of another split and device too: scaled by layers, with a warning, and compared."""
    path = tmp_path / "given.json"
    path.write_text(latency_file())
    stages, profiles = timed(_STEADY)
    with capture_logs() as logs:
        async with mesh(
            folder(tmp_path), stages, profiles=profiles, latency_model=path
        ) as running_mesh:
            info = await server_info(running_mesh)
    half = StageLatency(ms_per_token=2.0, ms_per_pair=5e-5)
    assert PipelineLatency((half, half)) == formed[-1].latency
    assert ["", ""] == [fit.refused for fit in info.fits]
    assert all(fit.median_error > 0.1 for fit in info.fits)
    assert "latency model is of another device" in {line["event"] for line in logs}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "JSON"),
        (latency_file(last_layer=29), "of layers 0-29, the model has 0-1"),
        (latency_file(ms_per_token=-1.0), "ms_per_token is -1.0"),
        (latency_file(first_layer=1), "of layers 1-1, the model has 0-1"),
    ],
)
async def test_a_wrong_file_is_refused_at_the_start(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    """Before a worker could attach; the error names the flag, the file and the fault."""
    path = tmp_path / "given.json"
    if text is not None:
        path.write_text(text)
    settings = SchedulerSettings(
        model_path=folder(tmp_path), latency_model=path, port=0, internal_port=0, http_port=0
    )
    with pytest.raises(ConfigError, match=f"--latency-model {path}.*{reason}"):
        async with running(settings):
            pass
