"""`python -m tests.bench.worker_loss`: how soon a lost stage is noticed, and how soon it goes on.

Three stages of a tiny model and one spare, each on a host of its own (network namespaces of one
machine; needs root). In the middle of an output the first, a middle or the last stage is killed,
stopped, cut off from everybody, or cut off from the stage beside it. It is noticed when the
scheduler's log says so, and goes on when the client has the next piece of output after that. The
spare has nothing of the request: prompt and output so far are computed again by all stages.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import grpc

from chunkmesh.layers import LayerRange
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.latency_file import LatencyFile, SavedStage
from tests.bench import machine
from tests.bench.measure import table
from tests.bytes_tokenizer import write_bytes_folder
from tests.eventually import eventually_blocking
from tests.mesh_of_hosts import MeshOfHosts, mesh_of_hosts
from tests.network_hosts import network, unable
from tests.random_ids import make_prompt
from tests.tiny_models import make_tiny_llama

_STAGES = {"first": "0:1", "middle": "1:2", "last": "2:4"}
_PROMPT_TOKENS = 1000
_OUTPUT_TOKENS = 40
_LOST_AT_TOKENS = 10
_DEADLINE_FLOOR_S = 1.0
_MS_PER_TOKEN = 0.1
"""Told of every stage: without a prediction its deadline would be ten times the floor."""
_NOTICED = frozenset({"worker lost", "stage fault"})
_SOON_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """One way to lose a stage."""

    lose: Callable[[MeshOfHosts, str, str], None]
    """Given the host that is lost, and that of the stage beside it."""
    heal: Callable[[MeshOfHosts, str, str], None]


def _cut(mesh: MeshOfHosts, host: str, others: tuple[str, ...], *, is_cut: bool) -> None:
    for other in others:
        for way in mesh.network.both(host, other):
            way.is_cut = is_cut


def _others(mesh: MeshOfHosts, host: str) -> tuple[str, ...]:
    return tuple(other for other in mesh.services if other != host)


_FAULTS = {
    "SIGKILL": _Fault(
        lose=lambda mesh, host, _beside: mesh.services[host].close(),
        heal=lambda mesh, host, _beside: mesh.services[host].start(),
    ),
    "SIGSTOP": _Fault(
        lose=lambda mesh, host, _beside: mesh.services[host].send(signal.SIGSTOP),
        heal=lambda mesh, host, _beside: mesh.services[host].send(signal.SIGCONT),
    ),
    "cut off from all": _Fault(
        lose=lambda mesh, host, _beside: _cut(mesh, host, _others(mesh, host), is_cut=True),
        heal=lambda mesh, host, _beside: _cut(mesh, host, _others(mesh, host), is_cut=False),
    ),
    "link between stages cut": _Fault(
        lose=lambda mesh, host, beside: _cut(mesh, host, (beside,), is_cut=True),
        heal=lambda mesh, host, beside: _cut(mesh, host, (beside,), is_cut=False),
    ),
}


@dataclasses.dataclass(slots=True, kw_only=True)
class _Measured:
    """What came of one way to lose one stage."""

    noticed_s: list[float] = dataclasses.field(default_factory=list)
    went_on_s: list[float] = dataclasses.field(default_factory=list)
    num_differing: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    """What the scheduler said when a request failed."""


class _Losses:
    """Loses stages of one mesh."""

    def __init__(self, mesh: MeshOfHosts, stage: int) -> None:
        """Lose always the same stage, of which there is a spare."""
        self._mesh, self._stage = mesh, stage
        self._log = mesh.services["scheduler"].log_path
        self._prompt = make_prompt(_PROMPT_TOKENS, stage)
        self._wait_whole()
        self._undisturbed, _ = self._ask(lambda: None)

    def lose(self, fault: _Fault, into: _Measured) -> None:
        """Lose the stage once, and have everything as it was."""
        self._wait_whole()
        host, beside = self._host(self._stage), self._host(self._stage - 1 if self._stage else 1)
        begins_s: list[float] = []

        def lose() -> None:
            begins_s.append(time.time())
            fault.lose(self._mesh, host, beside)

        try:
            ids, heard_s = self._ask(lose)
        except grpc.RpcError:
            into.failures.append(self._log.read_text()[-2000:])
            return
        finally:
            fault.heal(self._mesh, host, beside)
        (begin_s,) = begins_s
        noticed_s = self._noticed_s(begin_s)
        into.noticed_s.append(noticed_s - begin_s)
        into.went_on_s.append(min(each for each in heard_s if each > noticed_s) - begin_s)
        into.num_differing += ids != self._undisturbed

    def _ask(self, in_the_middle: Callable[[], None]) -> tuple[list[int], list[float]]:
        """Run the request; return its ids, and when each piece of output came."""
        request = pb.GenerateRequest(
            input_ids=pb.TokenIds(ids=self._prompt),
            sampling_params=pb.SamplingParams(
                temperature=0.0, max_new_tokens=_OUTPUT_TOKENS, ignore_eos=True
            ),
            stream=True,
        )
        ids: list[int] = []
        heard_s: list[float] = []
        for reply in self._mesh.stub.Generate(request, timeout=_SOON_S):
            num_before = len(ids)
            ids += reply.chunk.token_ids
            heard_s.append(time.time())
            if num_before < _LOST_AT_TOKENS <= len(ids):
                in_the_middle()
        return ids, heard_s

    def _noticed_s(self, begin_s: float) -> float:
        """Return when the scheduler first said that something was lost after a time."""
        for line in self._log.read_text().splitlines():
            said = json.loads(line)
            at_s = datetime.fromisoformat(said["timestamp"]).timestamp()
            if said["event"] in _NOTICED and at_s >= begin_s:
                return at_s
        raise AssertionError("nothing was noticed")

    def _wait_whole(self) -> None:
        """Wait until all stages serve beside a spare."""

        def is_whole() -> bool:
            states = [each.state for each in self._mesh.workers()]
            is_served = states.count(pb.WORKER_STATE_SERVING) == len(_STAGES)
            return is_served and states.count(pb.WORKER_STATE_SPARE) == 1

        eventually_blocking(is_whole, within_s=_SOON_S)

    def _host(self, stage: int) -> str:
        (worker,) = (
            each
            for each in self._mesh.workers()
            if each.HasField("epoch") and each.stage_index == stage
        )
        return self._mesh.host_of(worker)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.worker_loss", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="losses of each kind and stage")
    rounds = parser.parse_args().rounds
    if reason := unable():
        parser.error(reason)
    print(f"{machine.describe()}\n\n{machine.calibrate()}\n", flush=True)
    measured = {(stage, fault): _Measured() for stage in _STAGES for fault in _FAULTS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_bytes_folder(folder)
        make_tiny_llama(folder)
        with network("scheduler", *_STAGES, "spare") as hosts:
            for index, (stage, layers) in enumerate(_STAGES.items()):
                logs = folder / stage
                logs.mkdir()
                all_layers = {**_STAGES, "spare": layers}
                flags = [
                    f"--stage-deadline-floor={_DEADLINE_FLOOR_S}",
                    f"--latency-model={_latency_file(folder)}",
                ]
                with mesh_of_hosts(hosts, folder, logs, all_layers, scheduler_flags=flags) as mesh:
                    losses = _Losses(mesh, index)
                    for _ in range(rounds):
                        for fault, how in _FAULTS.items():
                            losses.lose(how, measured[stage, fault])
    print(_table(measured, rounds))
    print(machine.calibrate())


def _latency_file(folder: Path) -> Path:
    """Write what the stages are said to take."""
    path = folder / "latency.json"
    ranges = [LayerRange.parse(each) for each in _STAGES.values()]
    stages = tuple(
        SavedStage(
            first_layer=each.first,
            last_layer=each.last - 1,
            ms_per_token=_MS_PER_TOKEN,
            ms_per_pair=0.0,
            ms_per_row=_MS_PER_TOKEN,
        )
        for each in ranges
    )
    path.write_text(LatencyFile(model="tiny", device="cpu", stages=stages).to_json())
    return path


def _table(measured: dict[tuple[str, str], _Measured], rounds: int) -> str:
    replay = f"{_PROMPT_TOKENS} + {_LOST_AT_TOKENS} tokens computed again"
    title = f"Loss of a stage, {rounds} each, a spare waits, {replay}"
    header = (
        *("stage", "fault", "noticed, median", "worst", "goes on, median", "worst"),
        *("failed", "differ"),
    )
    rows = [
        (
            stage,
            fault,
            f"{statistics.median(each.noticed_s):.2f} s",
            f"{max(each.noticed_s):.2f} s",
            f"{statistics.median(each.went_on_s):.2f} s",
            f"{max(each.went_on_s):.2f} s",
            str(len(each.failures)),
            str(each.num_differing),
        )
        for (stage, fault), each in measured.items()
    ]
    told = [f"{failure}\n" for each in measured.values() for failure in each.failures]
    return table(title, header, rows) + "".join(told)


if __name__ == "__main__":
    main()
