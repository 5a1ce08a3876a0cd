"""`python -m tests.bench.simulated_ttft`: does the simulator tell the time to the first token?

Before each prompt the simulator, which is the live engine on a fake clock, is given what the live
scheduler plans with at that moment: the fit of each stage and the links' round trips, as
GetServerInfo tells them. Then the prompt runs. The first table's last column is what the profile of
the start alone would have said; it is measured anew for this bench, on the machine as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.demo_model import ensure_demo_model
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import RouteFormed
from scheduler.latency_model import PipelineLatency
from scheduler.latency_terms import told_latency
from scheduler.pipeline_time import LinkTime
from scheduler.settings import SchedulerSettings
from scheduler.simulator import Simulator
from tests.bench import machine
from tests.bench.measure import Sample, cell, table
from tests.bench.mesh_client import complete, new_prompt
from tests.model_times import ModelTimes, arrival

PROMPTS_TOKENS = (1024, 2048, 3072, 4096, 6144)
_WARM_UP_TOKENS = 512
_AIM = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a live scheduler tells of its route."""

    latency: PipelineLatency
    link_latency_s: float
    """One way, of the slowest link."""
    chunk_alignment_tokens: int
    num_pages: int
    config: EngineConfig

    @classmethod
    def of(cls, info: pb.GetServerInfoResponse) -> Known:
        """Read what GetServerInfo tells; what it does not is what settings have by default."""
        assert not info.chunk_strategy_reason, info.chunk_strategy_reason
        trips_s = [each.outbound.rtt_us / 1e6 for each in info.workers if each.HasField("outbound")]
        defaults = {name: field.default for name, field in SchedulerSettings.model_fields.items()}
        config = EngineConfig(
            page_tokens=info.page_tokens,
            chunked_prefill_tokens=info.chunked_prefill_tokens,
            max_running_requests=defaults["max_running_requests"],
            max_queued_requests=defaults["max_queued_requests"],
            load_timeout_s=1.0,
            max_outstanding_stores=0,
            max_chunk_ms=defaults["max_chunk_ms"],
        )
        return cls(
            latency=PipelineLatency(tuple(told_latency(fit.terms) for fit in info.fits)),
            link_latency_s=max(trips_s, default=0.0) / 2,
            chunk_alignment_tokens=info.chunk_alignment_tokens,
            num_pages=info.num_pages,
            config=config,
        )

    def ttft_ms(self, num_tokens: int) -> float:
        """Return when a prompt that is alone has its first token, by the simulator."""
        route = RouteFormed(
            epoch=1,
            num_stages=self.latency.num_stages,
            num_pages=self.num_pages,
            latency=self.latency,
            chunk_alignment_tokens=self.chunk_alignment_tokens,
            link=LinkTime(latency_ms=1000 * self.link_latency_s),
        )
        simulator = Simulator(
            Engine(self.config),
            route,
            ModelTimes(self.latency),
            link_latency_s=self.link_latency_s,
        )
        (request,) = simulator.run([arrival("alone", num_tokens)]).requests
        return 1000 * request.ttft_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One prompt, foretold and then measured."""

    prompt_tokens: int
    predicted_ms: float
    measured_ms: float
    chunk_tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All runs of one length."""

    prompt_tokens: int
    runs: tuple[Run, ...]
    by_profile_ms: float
    """Predicted before the mesh had served anything."""

    @property
    def measured_s(self) -> Sample:
        """In the order of the runs."""
        values = tuple(run.measured_ms / 1000 for run in self.runs)
        return Sample(name=f"{self.prompt_tokens} tokens", values=values, unit="s")

    @property
    def predicted_ms(self) -> float:
        """Median of what was foretold."""
        return statistics.median(run.predicted_ms for run in self.runs)

    @property
    def ratio(self) -> float:
        """Foretold over measured, both medians."""
        return self.predicted_ms / 1000 / self.measured_s.median

    def cells(self) -> list[str]:
        """Write a line of the table."""
        measured = self.measured_s
        chunks = self.runs[-1].chunk_tokens
        by_profile = self.by_profile_ms / 1000 / measured.median
        return [
            str(self.prompt_tokens),
            f"{len(chunks)}: {chunks[0]} .. {chunks[-1]}",
            f"{self.predicted_ms / 1000:.2f} s",
            cell(measured),
            f"{self.ratio:.2f}{'' if abs(self.ratio - 1) <= _AIM else ' (missed)'}",
            f"{by_profile:.2f}",
        ]

    def as_json(self) -> dict[str, object]:
        """Return all that was measured."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "ratio": self.ratio,
            "by_profile_ms": self.by_profile_ms,
            "runs": [dataclasses.asdict(run) for run in self.runs],
        }


def known_of(mesh: LocalMesh) -> Known:
    """Ask a mesh's scheduler."""
    with GenerationClient(HostPort.parse(mesh.scheduler_address)) as client:
        return Known.of(client.server_info())


def measure(
    model_path: Path, *, rounds: int, prompts_tokens: Sequence[int] = PROMPTS_TOKENS
) -> list[Row]:
    """Run prompts of all lengths in turn, each new to every cache, and foretell each."""
    runs: dict[int, list[Run]] = {num_tokens: [] for num_tokens in prompts_tokens}
    with tempfile.TemporaryDirectory() as folder:
        options = MeshOptions(
            model_path=model_path,
            num_stages=2,
            page_tokens=64,
            cache=False,
            worker_flags=(f"--profile-dir={folder}",),
        )
        with LocalMesh(options) as mesh:
            at_start = known_of(mesh)
            complete(mesh, new_prompt(_WARM_UP_TOKENS), 8)
            for _ in range(rounds):
                for num_tokens, of_length in runs.items():
                    of_length.append(_run(mesh, num_tokens))
    return [
        Row(
            prompt_tokens=num_tokens,
            runs=tuple(of_length),
            by_profile_ms=at_start.ttft_ms(num_tokens),
        )
        for num_tokens, of_length in runs.items()
    ]


def _run(mesh: LocalMesh, num_tokens: int) -> Run:
    """Foretell one prompt, then run it."""
    predicted_ms = known_of(mesh).ttft_ms(num_tokens)
    answer = complete(mesh, new_prompt(num_tokens), 1)
    return Run(
        prompt_tokens=num_tokens,
        predicted_ms=predicted_ms,
        measured_ms=answer.ttft_ms,
        chunk_tokens=tuple(answer.chunk_tokens),
    )


def text_of(rows: Sequence[Row]) -> str:
    """Write the table."""
    return table(
        "Time to the first token on two one-thread stages, foretold and measured (aim: 0.9-1.1)",
        ["tokens", "chunks", "predicted", "measured", "ratio", "by the profile alone"],
        [row.cells() for row in rows],
    )


def compare(model_path: Path, *, rounds: int) -> str:
    """Compare what the simulator foretells with what is measured."""
    return text_of(measure(model_path, rounds=rounds))


def main() -> None:
    """Print the table, and write all runs as JSON if asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.simulated_ttft")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=PROMPTS_TOKENS)
    parser.add_argument("--json", type=Path, help="file for all runs")
    options = parser.parse_args()
    command = f"python -m tests.bench.simulated_ttft {' '.join(sys.argv[1:])}".rstrip()
    calibrations = [machine.calibrate()]
    rows = measure(ensure_demo_model(), rounds=options.rounds, prompts_tokens=options.tokens)
    calibrations.append(machine.calibrate())
    print(f"{command}\n{machine.describe()}\n{calibrations[0]}\n\n{text_of(rows)}")
    print(calibrations[1])
    if options.json is not None:
        report = {
            "command": command,
            "hardware": machine.hardware(),
            "commit": machine.commit(),
            "machine": calibrations,
            "rows": [row.as_json() for row in rows],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
