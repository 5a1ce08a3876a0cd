"""`python -m tests.bench.rolling_restart`: what restarts of every service cost clients that stream.

Two schedulers, two workers for each of two stages of a tiny model, two hicache-servers and Valkey,
all processes of this machine; clients that try again send requests all the time. In every round
each service gets SIGTERM, is waited for, started again, and up before the next one ends; the order
is another one each time. A wait is one client's for its next piece of output.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from tests.bench import machine
from tests.bench.measure import table
from tests.bytes_tokenizer import write_bytes_folder
from tests.rolling_restart import Restart, restart, whole_mesh
from tests.streaming_load import StreamingLoad, asks
from tests.tiny_models import make_tiny_llama


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.rolling_restart", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5, help="restarts of each service")
    rounds = parser.parse_args().rounds
    print(f"{machine.describe()}\n\n{machine.calibrate()}\n", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_bytes_folder(folder)
        make_tiny_llama(folder)
        print(_measure(folder, rounds))
    print(machine.calibrate())


def _measure(folder: Path, rounds: int) -> str:
    """Restart everything so often; return the tables."""
    chance = random.Random(rounds)  # noqa: S311 -- a seeded bench
    restarts: list[Restart] = []
    with whole_mesh(folder, folder) as mesh:
        load = StreamingLoad(mesh.servers())
        load.learn(asks())
        with load.running():
            for _ in range(rounds):
                services = list(mesh.services.items())
                chance.shuffle(services)
                restarts += [restart(name, each, mesh, load) for name, each in services]
    return "\n".join((_requests(load, restarts), _services(restarts)))


def _requests(load: StreamingLoad, restarts: list[Restart]) -> str:
    header = ("restarts", "exit status not 0", "requests", "failed", "answers that differ")
    row = (
        str(len(restarts)),
        str(sum(each.exit_status != 0 for each in restarts)),
        str(load.num_ended + len(load.errors)),
        str(len(load.errors)),
        str(load.num_differing),
    )
    told = "".join(f"- {error!r}\n" for error in load.errors[:5])
    return table("Rolling restarts under load", header, [row]) + told


def _services(restarts: list[Restart]) -> str:
    kinds: dict[str, list[Restart]] = {}
    for each in restarts:
        kinds.setdefault(each.name.partition(" ")[0], []).append(each)
    header = ("service", "restarts", "median time to end", "longest wait, median", "worst")
    rows = [
        (
            kind,
            str(len(some)),
            f"{statistics.median(each.end_s for each in some):.2f} s",
            f"{statistics.median(each.longest_wait_s for each in some):.2f} s",
            f"{max(each.longest_wait_s for each in some):.2f} s",
        )
        for kind, some in sorted(kinds.items())
    ]
    return table("What one client waited for the next output, by what was restarted", header, rows)


if __name__ == "__main__":
    main()
