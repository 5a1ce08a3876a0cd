"""What becomes of a command whose standard output takes no more: a full disk, or a reader gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_EXIT_FAILURE = 1
_QUIET = {errno.EPIPE}
_TOLD = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def written_output() -> Iterator[None]:
    """Write what is printed to the end; if that fails, end with 1 and at most one line.

    A reader that went away, as head does, knows already.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # as it is where the caller has closed it
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in _QUIET | _TOLD:
            raise
        if error.errno in _TOLD:
            sys.stderr.write(f"chunkmesh: cannot write the output: {os.strerror(error.errno)}\n")
        # Else the interpreter tries once more at its end, with a message of its own.
        # Source: https://docs.python.org/3/library/signal.html#note-on-sigpipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_EXIT_FAILURE)
