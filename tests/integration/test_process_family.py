"""chunkmesh.cli.process_family: nothing is left running, whatever happens."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chunkmesh.cli.child_process import ChildCommand
from chunkmesh.cli.process_family import ChildFailed, ChildState, PlannedChild, ProcessFamily
from chunkmesh.cli.readiness import READY, STARTING, Readiness
from tests.eventually import eventually_blocking

_SLEEP = "import time; print('hello', flush=True); time.sleep(60)"
_STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _SLEEP
_WITH_GRANDCHILD = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True)\n"
    "import time; time.sleep(60)"
)
_PARENT = """
import sys, time
from pathlib import Path
from chunkmesh.cli.child_process import ChildCommand, ChildProcess
command = ChildCommand(name="child", command=(sys.executable, "-c", "import time; time.sleep(60)"))
print(ChildProcess(command, Path(sys.argv[1])).pid, flush=True)
time.sleep(60)
"""


@dataclasses.dataclass(slots=True)
class _Said:
    """A probe that is ready once the log holds a text; never, if the text is empty."""

    log: Path
    text: str = "hello"

    def ask(self) -> Readiness:
        return READY if self.text and self.text in self.log.read_text() else STARTING


def _child(run_dir: Path, name: str, script: str, text: str = "hello") -> PlannedChild:
    return PlannedChild(
        command=ChildCommand(name=name, command=(sys.executable, "-c", script)),
        probe=_Said(run_dir / f"{name}.log", text),
        address="",
    )


def _see_nothing(_states: tuple[ChildState, ...]) -> None:
    """Observe nothing."""


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def family(tmp_path: Path) -> Iterator[ProcessFamily]:
    """Yield a family whose members have time enough to end; closed at the end."""
    made = ProcessFamily(tmp_path, grace_s=20.0)
    yield made
    made.close()


def test_a_family_becomes_ready_and_ends(family: ProcessFamily, tmp_path: Path) -> None:
    """The ordinary life: SIGTERM is enough and quick."""
    family.start(_child(tmp_path, "a", _SLEEP), _child(tmp_path, "b", _SLEEP))
    family.wait_ready(20, _see_nothing)
    pids = [state.pid for state in family.states()]
    family.check()
    family.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_child_that_dies_is_named_with_its_last_lines(
    family: ProcessFamily, tmp_path: Path
) -> None:
    """Without the log's tail a user would have to search for the reason."""
    family.start(_child(tmp_path, "good", _SLEEP))
    family.start(
        _child(tmp_path, "bad", "import sys; print('first', flush=True); sys.exit('no weights')")
    )
    with pytest.raises(ChildFailed) as caught:
        family.wait_ready(20, _see_nothing)
    assert str(caught.value).startswith("bad ended with exit code 1; the last lines of")
    assert str(caught.value).endswith("first\nno weights")


def test_a_child_killed_by_a_signal_is_named_by_it(family: ProcessFamily, tmp_path: Path) -> None:
    """The kernel's out-of-memory killer is the likeliest such end."""
    family.start(_child(tmp_path, "a", _SLEEP))
    family.wait_ready(20, _see_nothing)
    pid = family.states()[0].pid
    os.kill(pid, signal.SIGKILL)
    eventually_blocking(lambda: _gone(pid))
    with pytest.raises(ChildFailed, match="a ended with signal 9"):
        family.check()


def test_a_child_that_others_stand_in_for_is_told_of_once(
    family: ProcessFamily, tmp_path: Path
) -> None:
    """A mesh with a spare goes on; without another one of its role it is down."""
    made = (_child(tmp_path, name, _SLEEP) for name in "ab")
    family.start(*(dataclasses.replace(each, role="stage 0") for each in made))
    family.wait_ready(20, _see_nothing)
    first, second = (state.pid for state in family.states())
    os.kill(first, signal.SIGKILL)
    eventually_blocking(lambda: _gone(first))
    (news,) = family.check()
    assert news.startswith("a ended with signal 9")
    assert family.check() == ()
    os.kill(second, signal.SIGKILL)
    eventually_blocking(lambda: _gone(second))
    with pytest.raises(ChildFailed, match="b ended with signal 9"):
        family.check()


def test_a_child_that_never_serves_is_named(family: ProcessFamily, tmp_path: Path) -> None:
    """The wait is bounded, and its end says what the child said last."""
    family.start(_child(tmp_path, "slow", _SLEEP, text=""))
    with pytest.raises(ChildFailed) as caught:
        family.wait_ready(3.0, _see_nothing)
    assert "slow is not ready after 3 s (starting)" in str(caught.value)
    assert str(caught.value).endswith("hello")


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """The grace is bounded."""
    family = ProcessFamily(tmp_path, grace_s=0.5)
    family.start(_child(tmp_path, "stubborn", _STUBBORN))
    family.wait_ready(20, _see_nothing)
    pid = family.states()[0].pid
    family.close()
    assert not psutil.pid_exists(pid)


def test_what_a_child_started_ends_with_it(family: ProcessFamily, tmp_path: Path) -> None:
    """A killed child cannot take care of its own children."""
    family.start(_child(tmp_path, "a", _WITH_GRANDCHILD, text="\n"))
    family.wait_ready(20, _see_nothing)
    grandchild = int((tmp_path / "a.log").read_text())
    family.close()
    eventually_blocking(lambda: _gone(grandchild))


def _family_that_notes_its_end(family: ProcessFamily, tmp_path: Path) -> Path:
    """Start a, b and c; return the file to which each adds its name when it ends."""
    order = tmp_path / "order"
    script = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    with open({order!r}, 'a') as file: file.write({name!r})\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('hello', flush=True)\n"
        "time.sleep(60)"
    )
    for name in "abc":
        family.start(_child(tmp_path, name, script.format(order=str(order), name=name)))
    family.wait_ready(20, _see_nothing)
    return order


def test_groups_end_in_reverse_order(family: ProcessFamily, tmp_path: Path) -> None:
    """Workers may still store pages while the servers that they need are up."""
    order = _family_that_notes_its_end(family, tmp_path)
    family.close()
    assert order.read_text() == "cba"


def test_one_process_may_end_ahead_of_the_others(family: ProcessFamily, tmp_path: Path) -> None:
    """A scheduler drains while its workers still compute."""
    order = _family_that_notes_its_end(family, tmp_path)
    family.end("b")
    assert order.read_text() == "b"
    family.end("nobody")
    family.close()
    assert order.read_text() == "bca"


def test_a_wait_ends_when_its_observer_raises(family: ProcessFamily, tmp_path: Path) -> None:
    """Ctrl-C during the start must not wait for readiness."""

    def observe(_states: tuple[ChildState, ...]) -> None:
        raise KeyboardInterrupt

    family.start(_child(tmp_path, "a", _SLEEP, text=""))
    with pytest.raises(KeyboardInterrupt):
        family.wait_ready(20, observe)


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves the parent no chance to clean up; the kernel has to."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as output:
        child = int(output.readline())
    assert psutil.pid_exists(child)
    parent.kill()
    parent.wait()
    eventually_blocking(lambda: _gone(child))
