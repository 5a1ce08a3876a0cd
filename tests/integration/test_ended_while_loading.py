"""A worker that is told to end while it loads, as in a rollout that is taken back."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tests.free_port import free_port
from tests.service_process import readiness_at

_PROGRAM = """
import time
import stage_worker.serve
from stage_worker.__main__ import main

def load_for_long(settings, progress):
    time.sleep(60)

stage_worker.serve._load_stage = load_for_long
main()
"""
_LIMIT_S = 60.0
_SOON_S = 10.0
"""For what takes a moment on a machine that has nothing else to do."""


def test_a_worker_that_loads_ends_at_once(tiny: Path, tmp_path: Path) -> None:
    """Weights may take minutes, and Kubernetes' patience is half a minute."""
    http = free_port()
    command = (
        sys.executable, "-c", textwrap.dedent(_PROGRAM), f"--model-path={tiny}", "--layers=0-1",
        "--port=0", "--data-port=0", f"--http-port={http}", "--transport=grpc",
    )  # fmt: skip
    log_path = tmp_path / "log"
    with log_path.open("wb") as log, subprocess.Popen(command, stderr=log) as running:
        try:
            deadline_s = time.monotonic() + _LIMIT_S
            while readiness_at(http)["state"] != "loading":
                assert time.monotonic() < deadline_s, log_path.read_text()
                time.sleep(0.02)
            begin_s = time.monotonic()
            running.send_signal(signal.SIGTERM)
            assert running.wait(_LIMIT_S) == 0, log_path.read_text()
            assert time.monotonic() - begin_s < _SOON_S
        finally:
            running.kill()
