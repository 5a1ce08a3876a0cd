"""What it saves that all stages warm up at once, and that compiled kernels are kept on disk.

A mesh of stage processes is started with an empty kernel cache and again with what that left, once
for each mode. Its shape is small: what is compiled depends on heads and widths, not on layers.
Where there are fewer GPUs than stages, stages share them, and the output says so.
Run: python -m tests.bench.gpu_warm_up [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chunkmesh.cli.gpus import stage_devices
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from tests.bench import machine
from tests.bench.scaling_results import Clock
from tests.bench.shape_folder import SHAPES, write_shape

_VARIABLES = ("TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR")
"""Of kernel caches that the project's own must not yield to here."""


def started(model_path: Path, mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Start a mesh, take it down, and return what its workers say of their warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        options = MeshOptions(
            model_path=model_path,
            num_stages=arguments.stages,
            devices=arguments.chosen_devices,
            page_tokens=128,
            chunked_prefill_tokens=2048,
            cache=False,
            scheduler_flags=("--chunk-strategy=fixed",),
            worker_flags=(
                "--load-format=dummy",
                "--profile=off",
                "--max-total-tokens=16384",
                f"--warmup-mode={mode}",
                f"--quantization={arguments.quantization}",
            ),
            ready_timeout_s=280,
            log_dir=Path(folder),
        )
        begun_s = time.monotonic()
        with LocalMesh(options):
            ready_s = time.monotonic() - begun_s
        warm = [_warm_seconds(Path(folder) / f"worker-{i}.log") for i in range(arguments.stages)]
    return {"ready_s": ready_s, "stage_s": warm}


def _warm_seconds(log: Path) -> float:
    """Return how long a worker's warm-up took, once it was its turn; 0 if it had none."""
    for line in log.read_text().splitlines():
        fields = json.loads(line) if line.startswith("{") else {}
        if fields.get("event") == "kernels are warm":
            return float(fields["seconds"])
    return 0.0


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_warm_up")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--modes", nargs="+", default=["serial", "parallel", "off"])
    parser.add_argument("--quantization", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--devices", help="GPUs of stages in turn, such as 0,0; else all")
    parser.add_argument(
        "--limit-s", type=float, default=220.0, help="no start is begun that ends behind it"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.chosen_devices = stage_devices("auto", arguments.devices)
    if not arguments.chosen_devices:
        sys.exit("no CUDA device is visible")
    clock, longest_s = Clock(arguments.limit_s), 0.0
    print(machine.describe())
    used = [
        arguments.chosen_devices[index % len(arguments.chosen_devices)]
        for index in range(arguments.stages)
    ]
    print(f"stages on {', '.join(used)}{': shared' if len(set(used)) < len(used) else ''}")
    print(f"{'mode':12}{'cache':8}{'ready after':>12}  warm-up of each stage, s")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), arguments.shape)
        for variable in _VARIABLES:
            os.environ.pop(variable, None)
        for mode, cache in itertools.product(arguments.modes, ("cold", "warm")):
            if not clock.allows(longest_s):
                print(f"{mode:12}{cache:8} no time", flush=True)
                continue
            os.environ["XDG_CACHE_HOME"] = str(Path(folder) / mode)
            begun_s = time.monotonic()
            measured = started(Path(folder), mode, arguments)
            longest_s = max(longest_s, time.monotonic() - begun_s)
            row = {"mode": mode, "cache": cache, "devices": used, **measured}
            rows.append(row)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(rows, indent=1))
            seconds = ", ".join(f"{each:.1f}" for each in row["stage_s"])
            print(f"{mode:12}{cache:8}{row['ready_s']:12.1f}  {seconds}", flush=True)


if __name__ == "__main__":
    main()
