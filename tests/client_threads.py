"""Threads of clients that do one thing after the other until they are told to stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tests.service_process import WAIT_S


class ClientThreads:
    """Owns the threads."""

    def __init__(self, run: Callable[[int], None], num_clients: int) -> None:
        """Start nothing yet; run is given the client's number, and returns once stop is set."""
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=run, args=(each,)) for each in range(num_clients)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let clients run while inside; on leaving, wait for the ends of what they are at."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in self._threads:
                thread.join(WAIT_S)
