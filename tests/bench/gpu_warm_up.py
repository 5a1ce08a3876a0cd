"""What it saves that all stages warm up at once, and that compiled kernels are kept on disk.

A mesh of stage processes is started with an empty kernel cache and again with what that left, once
for each mode. Its shape is small: what is compiled depends on heads and widths, not on layers.
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
from tests.bench.shape_folder import SHAPES, write_shape

_VARIABLES = ("TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR")
"""Of kernel caches that the project's own must not yield to here."""


def started(model_path: Path, mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Start a mesh, take it down, and return what its workers say of their warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        options = MeshOptions(
            model_path=model_path,
            num_stages=arguments.stages,
            devices=stage_devices("cuda", None),
            page_tokens=128,
            chunked_prefill_tokens=2048,
            cache=False,
            scheduler_flags=("--chunk-strategy=fixed",),
            worker_flags=(
                "--load-format=dummy",
                "--profile=off",
                "--max-total-tokens=16384",
                f"--warmup-mode={mode}",
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
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not stage_devices("auto", None):
        sys.exit("no CUDA device is visible")
    print(machine.describe())
    print(f"{'mode':12}{'cache':8}{'ready after':>12}  warm-up of each stage, s")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), arguments.shape)
        for variable in _VARIABLES:
            os.environ.pop(variable, None)
        for mode, cache in itertools.product(arguments.modes, ("cold", "warm")):
            os.environ["XDG_CACHE_HOME"] = str(Path(folder) / mode)
            row = {"mode": mode, "cache": cache, **started(Path(folder), mode, arguments)}
            rows.append(row)
            seconds = ", ".join(f"{each:.1f}" for each in row["stage_s"])
            print(f"{mode:12}{cache:8}{row['ready_s']:12.1f}  {seconds}", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
