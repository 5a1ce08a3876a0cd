"""Runs a service from its command line to its exit status; used by every __main__.

    async def serve(settings: WorkerSettings, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            ...
            await stop.wait()

    def main() -> None:
        service.run(WorkerSettings, serve)

The first SIGTERM or SIGINT sets stop and serve returns when it is done; a second one cancels it,
and a third one ends the process whatever still holds it up.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Never

import structlog

from chunkmesh import left_threads, logs
from chunkmesh.config import Loaded, SettingsT, load
from chunkmesh.errors import ConfigError

EXIT_FAILURE = 1
EXIT_USAGE = 2
_MAX_REASON = 2000

Serve = Callable[[SettingsT, asyncio.Event], Awaitable[None]]

_log = structlog.get_logger(__name__)


def run(settings_class: type[SettingsT], serve: Serve[SettingsT]) -> Never:
    """Load the settings, run serve in a new event loop, and exit the process.

    Exit status: 0 after a graceful stop, 2 on a ConfigError (one line on stderr), 1 on any other
    error (logged) and when a second signal cut the stop short.
    """
    try:
        loaded = load(settings_class, sys.argv[1:], os.environ)
    except ConfigError as error:
        sys.exit(_refuse(settings_class.command, error))
    settings = loaded.settings
    logs.set_up(service=settings.service, level=settings.log_level, log_format=settings.log_format)
    status = _exit_status(loaded, serve)
    if left_threads.still_run():
        _end_at_once(status)
    sys.exit(status)


def _exit_status(loaded: Loaded[SettingsT], serve: Serve[SettingsT]) -> int:
    _log.info("starting", pid=os.getpid(), settings=loaded.values())
    # Modules and classes stay: without them a full collection no longer holds the loop up.
    gc.collect()
    gc.freeze()
    for flag in loaded.open_passwords():
        _log.warning("password in the command line", flag=flag, remedy="--redis-password-file")
    try:
        asyncio.run(_until_stopped(loaded.settings, serve))
    except asyncio.CancelledError:
        _log.warning("stop cut short")
        return EXIT_FAILURE
    except Exception as error:  # noqa: BLE001 - the last place that can log it
        if cause := _config_error(error):
            return _refuse(loaded.settings.command, cause)
        stack = "".join(traceback.format_exception(error))
        _log.error("failed", error=type(error).__name__, stack=stack)
        return EXIT_FAILURE
    _log.info("stopped")
    return 0


async def _until_stopped(settings: SettingsT, serve: Serve[SettingsT]) -> None:
    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if task.done() or task.cancelling():
            _end_at_once(EXIT_FAILURE)
        if stop.is_set():
            task.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await serve(settings, stop)


def _end_at_once(status: int) -> Never:
    """End the process without a look at what its threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _config_error(error: BaseException) -> ConfigError | None:
    """Find the ConfigError that ended a task, inside the groups of task groups too."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_config_error, error.exceptions)), None)
    return None


def _refuse(command: str, error: ConfigError) -> int:
    sys.stderr.write(f"{command}: {_one_line(str(error))}\n")
    return EXIT_USAGE


def _one_line(text: str) -> str:
    """Return a reason as a terminal can show it: it may quote a file that nobody has looked at."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return shown if len(shown) <= _MAX_REASON else f"{shown[:_MAX_REASON]} ..."
