"""`python -m tests.bench [NAME ...]`: measures on the demo model and prints Markdown tables.

What the mesh itself costs is `python -m tests.bench scheduler overhead`: microbatches planned a
second, and what each takes of each stage beside compute.

Best on an idle machine: each table stands between two looks at what the machine itself gives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from chunkmesh.demo_model import ensure_demo_model
from tests.bench import (
    against_transformers,
    cached_ttft,
    chunk_strategies,
    engine,
    machine,
    pipeline,
    simulated_ttft,
)

_BENCHES: dict[str, Callable[..., str]] = {
    "prefill": pipeline.prefill,
    "decode": pipeline.decode,
    "scheduler": engine.planned,
    "overhead": pipeline.overhead,
    "cached_ttft": cached_ttft.cached_ttft,
    "transformers": against_transformers.compare,
    "simulated": simulated_ttft.compare,
    "strategies": chunk_strategies.compare,
}


def main() -> None:
    """Run the benches that were named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(_BENCHES)}; all if none")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each pair")
    parser.add_argument("--model-path", type=Path, help="model folder; the demo model if not given")
    options = parser.parse_args()
    unknown = set(options.names) - set(_BENCHES)
    if unknown:
        parser.error(f"no bench named {', '.join(sorted(unknown))}")
    model_path = options.model_path or ensure_demo_model()
    print(f"python -m tests.bench {' '.join(sys.argv[1:])}\n{machine.describe()}\n")
    for name in options.names or _BENCHES:
        print(f"{machine.calibrate()}\n", flush=True)
        print(_BENCHES[name](model_path, rounds=options.rounds), flush=True)
    print(machine.calibrate())


if __name__ == "__main__":
    main()
