"""From results to a picture, if its file and matplotlib allow for one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from chunkmesh.bench.result import BenchResult
from chunkmesh.errors import ConfigError, reason_of

_LIBRARY = "matplotlib"


def check_picture(path: Path, flag: str) -> None:
    """Check that a picture could be drawn, before anything is measured for it.

    Raises:
        ConfigError: the name says no format, or matplotlib is not there.
    """
    _kind(path, flag)
    if find_spec(_LIBRARY) is None:
        raise ConfigError(
            f"{flag} draws with {_LIBRARY}, which comes with pip install 'chunkmesh[demo]'"
        )


def draw(results: Sequence[tuple[str, BenchResult]], path: Path, flag: str) -> None:
    """Draw every run of every result, which has a name; check_picture has been called.

    Raises:
        ConfigError: requests were not kept, or the file cannot be written.
    """
    from chunkmesh.cli import bench_picture  # noqa: PLC0415 - matplotlib comes with an extra

    runs = []
    for name, result in results:
        for run in result.runs:
            if run.records is None:
                raise ConfigError(f"{name}: holds no requests; measure with --save-detailed")
            runs.append(bench_picture.DrawnRun(label=name, records=run.records))
    try:
        bench_picture.save(runs, path, _kind(path, flag))
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {reason_of(error)}") from error
    sys.stderr.write(f"{path}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}\n")


def _kind(path: Path, flag: str) -> Literal["png", "svg"]:
    match path.suffix.lower():
        case ".svg":
            return "svg"
        case ".png":
            return "png"
        case _:
            raise ConfigError(f"{flag} {path}: must end in .svg or .png")
