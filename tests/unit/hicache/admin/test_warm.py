"""What a warm leaves behind when it is interrupted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chunkmesh.v1 import generation_pb2
from hicache.admin import warm


class _Call:
    """A call without an end but its cancel."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        """End it."""
        self.cancelled.set()

    def __iter__(self) -> Iterator[generation_pb2.GenerateResponse]:
        """Bring nothing, for ten seconds at most."""
        self.cancelled.wait(10)
        return iter(())


class _Interrupted:
    """A scheduler whose caller hits Ctrl-C before it has the call in hand."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []

    def Generate(self, *_args: Any, **_more: Any) -> _Call:
        """Let the main thread wait for us, interrupt it, and leave it time to give up."""
        self.calls.append(_Call())
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.2)
        return self.calls[-1]


def test_ctrl_c_cancels_a_call_that_has_just_begun() -> None:
    """Its prompt may take an hour, and the command waits for its threads; none follows it."""
    scheduler: Any = _Interrupted()
    request = generation_pb2.TokenizeRequest(text="x")
    prompt = warm._Prompt(request=request, num_tokens=1, new_digests=frozenset())
    with pytest.raises(KeyboardInterrupt):
        warm._run(scheduler, [prompt] * 3, warm._Tally(), 1)
    (call,) = scheduler.calls
    assert call.cancelled.is_set()
