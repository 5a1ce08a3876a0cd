"""What a mesh on this machine shall be: model, stages, ports, limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Settings of the gateway that runs beside a mesh."""

    port: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeshOptions:
    """Settings of a LocalMesh. A port of None means any free one."""

    model_path: Path
    """A Hugging Face model folder."""
    num_stages: int = 2
    """Ignored when layers is given."""
    layers: tuple[LayerRange, ...] | None = None
    """Ranges of the stages, tiling the model; None splits evenly."""
    replicas: tuple[int, ...] = (1,)
    """Workers of each stage, >= 1; one number is for all of them."""
    threads: int = 1
    """Compute threads of each stage worker, >= 1."""
    devices: tuple[str, ...] = ()
    """Stage i computes on the i-th, modulo their number; each worker chooses where empty."""
    transport: Literal["ucx", "grpc"] = "ucx"
    page_tokens: int | None = None
    """None leaves it to the scheduler."""
    chunked_prefill_tokens: int | None = None
    """None leaves it to the scheduler."""
    redis_url: str | None = None
    """None starts a server of our own; several, with commas between, share the pages."""
    cache: bool = True
    """Without it neither a Redis server nor hicache-server runs."""
    mesh_name: str | None = None
    """Name of the lease, in the same Redis, by which a second scheduler stands by; None means that
    there is none."""
    redis_max_bytes: int = 1 << 30
    """Memory bound of our own Redis server, > 0."""
    host: str = "127.0.0.1"
    """Where the scheduler listens; everything else stays on loopback."""
    port: int | None = None
    internal_port: int | None = None
    http_port: int | None = None
    hicache_port: int | None = None
    gateway: GatewayOptions | None = None
    """None runs no chunkmesh-gateway."""
    prefer_usual_ports: bool = False
    """Ports of None are the services' usual ones where those are free."""
    scheduler_flags: tuple[str, ...] = ()
    """Passed on as they are."""
    worker_flags: tuple[str, ...] = ()
    """Passed on as they are, to every worker."""
    certs: Path | None = None
    """Folder of certificates as make certs writes them; None is plain text."""
    log_dir: Path | None = None
    """Where logs go and stay; None makes a temporary folder, kept only after a failure."""
    ready_timeout_s: float = 300.0
    grace_s: float = 40.0
    """How long each group of processes may take to end before SIGKILL; the scheduler may drain."""

    def __post_init__(self) -> None:
        """Refuse what no mesh can be.

        Raises:
            ConfigError: names the flag, the value and the limit.
        """
        if min(self.replicas) < 1:
            raise ConfigError(f"--replicas {min(self.replicas)}: at least 1")
        if self.threads < 1:
            raise ConfigError(f"--threads {self.threads}: at least 1")
        if self.redis_url is not None and not self.cache:
            raise ConfigError("--redis-url and --no-cache exclude each other")
        if self.mesh_name is not None and not self.cache:
            raise ConfigError(
                "--standby and --no-cache exclude each other: who leads is agreed in the Redis of"
                " the cache"
            )
        if self.hicache_port is not None and not self.cache:
            raise ConfigError("--hicache-port and --no-cache exclude each other")
        for flag, tokens in (
            ("--page-size", self.page_tokens),
            ("--chunked-prefill-size", self.chunked_prefill_tokens),
        ):
            if tokens is not None and tokens < 1:
                raise ConfigError(f"{flag} {tokens}: at least 1 token")
