"""`python -m tests.fuzz.guided NAME`: one decoder, with inputs that atheris finds by coverage.

Source: https://github.com/google/atheris
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["chunkmesh", "scheduler", "stage_worker", "hicache"]):
    from tests.fuzz.all_targets import TARGETS

_MOST_BYTES = 1 << 16
_LONGEST_S = 25


def main() -> None:
    """Run until the time is over; a finding ends the process, and shows its bytes."""
    (target,) = (each for each in TARGETS if each.name == sys.argv[1])
    seconds = max(1, round(float(os.environ.get("FUZZ_SECONDS_EACH", "60"))))
    with tempfile.TemporaryDirectory() as corpus:
        for index, seed in enumerate(target.seeds):
            (Path(corpus) / str(index)).write_bytes(seed)
        options = (
            f"-max_total_time={seconds}",
            f"-max_len={_MOST_BYTES}",
            f"-timeout={_LONGEST_S}",
            "-rss_limit_mb=8192",
            "-print_final_stats=1",
            f"-artifact_prefix={tempfile.gettempdir()}/",
        )
        atheris.Setup([sys.argv[0], *options, corpus], target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
