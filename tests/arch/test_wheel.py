"""What users install: the wheel, built once, holds the packages, no more, and no forbidden code."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.forbidden_code import forbidden

ROOT = Path(__file__).parents[2]
PACKAGES = ("chunkmesh", "scheduler", "stage_worker", "hicache")
DATA = {"chunkmesh/py.typed", "scheduler/planning/data/h200-qwen3-8b.json"}
"""All files beside code and stubs; a new one is named here on purpose."""
_MAX_BYTES = 4 << 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it, in a few seconds and without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ""},
        check=True,
        capture_output=True,
        timeout=100,
    )
    (built,) = folder.glob("*.whl")
    return built


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """No tests, notes, keys or weights that lay about when it was built."""
    names = _names(wheel)
    assert set(PACKAGES) == {name.partition("/")[0] for name in names}
    code = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for suffix in ("*.py", "*.pyi")
        for path in (ROOT / package).rglob(suffix)
    }
    assert code | DATA == set(names)
    assert len(names) == len(set(names))
    assert wheel.stat().st_size < _MAX_BYTES


def test_no_code_of_the_wheel_runs_data(wheel: Path) -> None:
    """What is shipped counts, generated stubs included, not only what the sources look like."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in _names(wheel):
            if name.endswith(".py"):
                found[name] = forbidden(archive.read(name).decode(), name)
    assert len(found) > 300
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    """The licence goes with it, and no script but the six commands."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = [name for name in names if name.endswith("entry_points.txt")]
        scripts = archive.read(points).decode().partition("[console_scripts]\n")[2]
    assert any(name.endswith("licenses/LICENSE") for name in names)
    commands = [line.partition(" = ")[0] for line in scripts.split("\n\n")[0].splitlines() if line]
    assert sorted(commands) == [
        "chunkmesh",
        "chunkmesh-gateway",
        "chunkmesh-scheduler",
        "hicache-admin",
        "hicache-server",
        "stage-worker",
    ]
