"""The run loop of services, in processes of their own: exit status, signals, what is printed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

PROGRAM = """
import asyncio
import atexit
import sys
import threading
import time
from typing import ClassVar
from chunkmesh import left_threads, service
from chunkmesh.errors import ConfigError
from chunkmesh.settings import Settings

class Sample(Settings):
    "Serves."
    service: ClassVar[str] = "sample"
    command: ClassVar[str] = "sample-server"

async def wait(settings, stop):
    print("up", flush=True)
    await stop.wait()

async def ignore_stop(settings, stop):
    print("up", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    await asyncio.Event().wait()

def sleep_long():
    time.sleep(60)

async def leave_a_thread(settings, stop):
    thread = threading.Thread(target=sleep_long, daemon=True)
    thread.start()
    atexit.register(lambda: print("the interpreter ended under it", file=sys.stderr))
    left_threads.leave(thread)
    print("up", flush=True)
    await stop.wait()

async def never_end(settings, stop):
    threads = asyncio.to_thread(sleep_long)
    print("up", flush=True)
    await threads

async def refuse(settings, stop):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(refuse_inside())
        await stop.wait()

async def refuse_inside():
    raise ConfigError("port 1 is in use")

async def fail(settings, stop):
    raise KeyError("x")

service.run(Sample, {serve})
"""


def _start(serve: str, *argv: str) -> "subprocess.Popen[str]":
    program = textwrap.dedent(PROGRAM).replace("{serve}", serve)
    return subprocess.Popen(
        [sys.executable, "-c", program, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if "CHUNKMESH" not in name},
    )


def _finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Return the exit status and what was written to stderr."""
    with process:
        try:
            _, stderr = process.communicate(timeout=20)
        finally:
            process.kill()
    return process.returncode, stderr


def _events(stderr: str) -> list[str]:
    return [json.loads(line)["event"] for line in stderr.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_graceful_stop(number: signal.Signals) -> None:
    """Containers and Ctrl-C end a service with status 0."""
    process = _start("wait")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    status, stderr = _finish(process)
    assert (status, _events(stderr)) == (0, ["starting", "stopped"])


def test_a_second_signal_cuts_the_stop_short() -> None:
    """A stop that hangs can be ended without SIGKILL."""
    process = _start("ignore_stop")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    status, stderr = _finish(process)
    assert (status, _events(stderr)) == (1, ["starting", "stop cut short"])


def test_a_thread_that_was_left_holds_nothing_up() -> None:
    """Native code that it runs would abort a process whose interpreter ends under it."""
    process = _start("leave_a_thread")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    status, stderr = _finish(process)
    assert (status, _events(stderr)) == (0, ["starting", "stopped"])


def test_a_third_signal_ends_whatever_hangs() -> None:
    """A thread that asyncio waits for would else leave SIGKILL only."""
    process = _start("never_end")
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    status, stderr = _finish(process)
    assert (status, _events(stderr)[0]) == (1, "starting")


def test_a_wrong_flag_is_one_line_and_status_2() -> None:
    """A user sees what to mend, not a traceback."""
    status, stderr = _finish(_start("wait", "--log-level", "loud"))
    assert status == 2
    assert stderr == (
        "sample-server: --log-level loud (flag --log-level): "
        "should be 'debug', 'info', 'warning' or 'error'\n"
    )


def test_a_config_error_of_a_task_is_one_line_and_status_2() -> None:
    """Task groups wrap errors; users see the cause all the same."""
    status, stderr = _finish(_start("refuse"))
    assert (status, stderr.splitlines()[-1]) == (2, "sample-server: port 1 is in use")


def test_a_bug_is_logged_and_status_1() -> None:
    """The log has the place; the supervisor sees the status."""
    status, stderr = _finish(_start("fail"))
    failed = json.loads(stderr.splitlines()[-1])
    assert (status, failed["event"], failed["error"]) == (1, "failed", "KeyError")
    assert (failed["service"], failed["level"]) == ("sample", "error")
    assert "in fail" in failed["stack"]


def test_logs_may_be_text() -> None:
    """People read text."""
    process = _start("wait", "--log-format", "text")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, stderr = _finish(process)
    assert "stopped" in stderr
    assert "{" not in stderr.splitlines()[-1]
