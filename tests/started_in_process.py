"""Runs a command line in this process, until it refuses to start.

A process of its own takes seconds to import what it needs; each command line here takes a few
milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator, Mapping

import pytest
import structlog

from chunkmesh.cli.__main__ import main as chunkmesh
from chunkmesh.gateway.__main__ import main as chunkmesh_gateway
from hicache.__main__ import main as hicache_server
from scheduler.__main__ import main as chunkmesh_scheduler
from stage_worker.__main__ import main as stage_worker

COMMANDS = {
    "chunkmesh": chunkmesh,
    "chunkmesh-scheduler": chunkmesh_scheduler,
    "stage-worker": stage_worker,
    "hicache-server": hicache_server,
    "chunkmesh-gateway": chunkmesh_gateway,
}


def refusal(*command: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit status and the last line that a service has written, which is its reason.

    Nothing that it writes may be a traceback.
    """
    status, text = ended(*command, environ=environ)
    return status, text.splitlines()[-1]


def ended(*command: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit status and all that a command has written to standard error."""
    written = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        _logging_kept(),
        contextlib.redirect_stderr(written),
    ):
        patch.setattr(sys, "argv", list(command))
        for name, value in (environ or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            COMMANDS[command[0]]()
    text = written.getvalue()
    assert "Traceback" not in text, text
    assert isinstance(end.value.code, int)
    return end.value.code, text


@contextlib.contextmanager
def _logging_kept() -> Iterator[None]:
    """Undo what a service does to the logs of this process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
