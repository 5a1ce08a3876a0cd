"""Compiled kernels are kept on disk, and serial warm-ups take turns."""

from __future__ import annotations

import threading
from pathlib import Path

from stage_worker.kernel_cache import use_kernel_cache
from stage_worker.warm_up_turn import turn

_WAIT_S = 20.0


def test_libraries_are_told_a_folder(tmp_path: Path) -> None:
    """The next start finds what this one compiled."""
    environment: dict[str, str] = {}
    use_kernel_cache(tmp_path / "kernels", environment)
    folders = {"TRITON_CACHE_DIR": "triton", "DG_JIT_CACHE_DIR": "deep_gemm"}
    assert environment == {
        name: str(tmp_path / "kernels" / folder) for name, folder in folders.items()
    }
    assert all(Path(folder).is_dir() for folder in environment.values())


def test_a_folder_that_was_named_stays(tmp_path: Path) -> None:
    """Whoever set the variable knows better."""
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "mine")}
    use_kernel_cache(tmp_path / "kernels", environment)
    assert environment["TRITON_CACHE_DIR"] == str(tmp_path / "mine")


def test_turns_exclude_each_other(tmp_path: Path) -> None:
    """Otherwise a serial warm-up would measure a parallel one."""
    path = tmp_path / "folder" / "lock"
    events: list[str] = []
    inside, may_leave = threading.Event(), threading.Event()

    def first() -> None:
        with turn(path):
            inside.set()
            assert may_leave.wait(_WAIT_S)
            events.append("first leaves")

    def second() -> None:
        may_leave.set()
        with turn(path):
            events.append("second enters")

    threads = [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert inside.wait(_WAIT_S)
    threads[1].start()
    for thread in threads:
        thread.join(_WAIT_S)
    assert events == ["first leaves", "second enters"]
