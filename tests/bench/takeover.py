"""How long a mesh serves nobody when its scheduler is killed, stopped, or ends as it should.

`python -m tests.bench.takeover`: two schedulers, two workers of a tiny model, and Valkey, all
processes of this machine; three clients that try again send requests all the time. A pause begins
with the signal and ends with the first answer to a request that was sent after it.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import statistics
import tempfile
import time
from pathlib import Path

from chunkmesh.cli.generation_client import GenerationClient
from tests.bench import machine
from tests.bench.measure import table
from tests.bytes_tokenizer import write_bytes_folder
from tests.patient_load import Load, generated
from tests.standby_mesh import StandbyMesh
from tests.tiny_models import make_tiny_llama
from tests.valkey import running_valkey

_SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "ended": signal.SIGTERM}


@dataclasses.dataclass(slots=True)
class _Taken:
    """What came of one way to lose a scheduler."""

    pauses_s: list[float] = dataclasses.field(default_factory=list)
    num_requests: int = 0
    num_failed: int = 0
    outputs: set[tuple[int, ...]] = dataclasses.field(default_factory=set)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.takeover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="take-overs of each kind")
    rounds = parser.parse_args().rounds
    print(f"{machine.describe()}\n\n{machine.calibrate()}\n", flush=True)
    taken = {name: _Taken() for name in _SIGNALS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_bytes_folder(folder)
        make_tiny_llama(folder)
        with (
            running_valkey(folder) as valkey,
            StandbyMesh(folder, valkey, folder).running() as mesh,
        ):
            for _ in range(rounds):
                for name in _SIGNALS:
                    _lose(mesh, name, taken[name])
    header = ("scheduler", "pause, median", "worst", "requests", "failed", "different outputs")
    rows = [
        (
            name,
            f"{statistics.median(each.pauses_s):.2f} s",
            f"{max(each.pauses_s):.2f} s",
            str(each.num_requests),
            str(each.num_failed),
            str(len(each.outputs) - 1),
        )
        for name, each in taken.items()
    ]
    print(table(f"Take-over by a standby, {rounds} each", header, rows))
    print(machine.calibrate())


def _lose(mesh: StandbyMesh, name: str, taken: _Taken) -> None:
    """Lose the active scheduler under load, and have it back as the standby."""
    active = mesh.active
    (heir,) = (each for each in mesh.schedulers if each is not active)
    with Load(mesh.servers()).running() as load:
        load.wait_for(3)
        active.send(_SIGNALS[name])
        begin_s = time.monotonic()
        mesh.wait_state(heir, "serving")
        with GenerationClient(heir.users) as client:
            generated(client)
        taken.pauses_s.append(time.monotonic() - begin_s)
        if name == "stopped":
            active.send(signal.SIGCONT)
        else:
            active.exit_status()
            active.start()
        load.wait_for(3)
    mesh.wait_state(active, "standby")
    taken.num_requests += len(load.outputs) + len(load.errors)
    taken.num_failed += len(load.errors)
    taken.outputs |= set(load.outputs)


if __name__ == "__main__":
    main()
