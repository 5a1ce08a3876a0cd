"""A folder in the cache is complete and as it was written, or it is made again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chunkmesh.demo_model.folder import ensure_folder
from chunkmesh.demo_model.manifest import MANIFEST_FILE, find_damage

SOURCE = "0" * 64


class Build:
    """Writes two files and counts how often it was asked to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, scratch: Path, built: Path) -> None:
        """Build a small folder."""
        self.count += 1
        (scratch / "download").write_bytes(b"large")
        (built / "weights").write_bytes(b"0123456789" * 1000)
        (built / "config.json").write_text("{}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where the folder is to be."""
    return tmp_path / "models" / "tiny"


def test_it_is_made_once(folder: Path) -> None:
    """The second run only checks."""
    build = Build()
    for _ in range(2):
        ensure_folder(folder, source_sha256=SOURCE, build=build)
    assert build.count == 1
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted([MANIFEST_FILE, "config.json", "weights"])
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == ["tiny"]


def flip_a_byte(folder: Path) -> None:
    """Change the middle of the large file, not its size."""
    content = bytearray((folder / "weights").read_bytes())
    content[5000] ^= 1
    (folder / "weights").write_bytes(content)


def remove_a_file(folder: Path) -> None:
    """Lose a file that the manifest names."""
    (folder / "config.json").unlink()


def break_the_manifest(folder: Path) -> None:
    """Cut the manifest short."""
    (folder / MANIFEST_FILE).write_text("{")


@pytest.mark.parametrize("damage", [flip_a_byte, remove_a_file, break_the_manifest])
def test_damage_is_found_and_repaired(folder: Path, damage: object) -> None:
    """A model with one wrong byte would answer wrongly without any error."""
    assert callable(damage)
    build = Build()
    ensure_folder(folder, source_sha256=SOURCE, build=build)
    damage(folder)
    assert find_damage(folder, source_sha256=SOURCE) is not None
    ensure_folder(folder, source_sha256=SOURCE, build=build)
    assert build.count == 2
    assert find_damage(folder, source_sha256=SOURCE) is None


def test_a_folder_of_another_source_is_made_again(folder: Path) -> None:
    """A new release may pin another file."""
    build = Build()
    ensure_folder(folder, source_sha256="1" * 64, build=build)
    ensure_folder(folder, source_sha256=SOURCE, build=build)
    assert build.count == 2


def test_an_interrupted_run_leaves_nothing_half(folder: Path) -> None:
    """Ctrl-C in the middle must not leave a folder that looks like a model."""

    def interrupted(scratch: Path, built: Path) -> None:
        Build()(scratch, built)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_folder(folder, source_sha256=SOURCE, build=interrupted)
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == []
    ensure_folder(folder, source_sha256=SOURCE, build=Build())
    assert find_damage(folder, source_sha256=SOURCE) is None


def test_leftovers_of_a_killed_run_are_removed(folder: Path) -> None:
    """A killed process cannot clean up after itself."""
    partial = folder.with_name(".tiny.partial")
    (partial / "scratch").mkdir(parents=True)
    (partial / "scratch" / "download").write_bytes(b"half")
    ensure_folder(folder, source_sha256=SOURCE, build=Build())
    assert not partial.exists()


def test_runs_at_the_same_time_build_once(folder: Path) -> None:
    """Others wait for the one that builds, then use its result."""
    build, start = Build(), threading.Barrier(4)

    def run() -> None:
        start.wait(10)
        ensure_folder(folder, source_sha256=SOURCE, build=build)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run) for _ in range(4)]:
            future.result(timeout=30)
    assert build.count == 1
