"""What a stage worker can be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from chunkmesh.address import EVERY_NETWORK, HostPort
from chunkmesh.settings import Address, Layers, Port, Settings


class WorkerSettings(Settings):
    """Holds one contiguous range of layers and computes it."""

    service: ClassVar[str] = "stage_worker"
    command: ClassVar[str] = "stage-worker"
    flag_aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model_path": ("--model",),
        "peer": ("--next",),
    }

    model_path: Path
    """Hugging Face folder of the model: config.json and safetensors. `chunkmesh model path` prints
    the demo model's."""
    layers: Layers
    """Decoder layers to serve: 15-29 includes layer 29, 15:30 means the same."""
    peer: Address | None = None
    """Preferred HOST:PORT of the next stage's data port; the scheduler knows it too, and where it
    knows better --peer costs a warning. Not for the last stage."""
    scheduler: Annotated[tuple[Address, ...], Field(min_length=1)] = (
        HostPort(host="127.0.0.1", port=50052),
    )
    """HOST:PORT of the scheduler's internal port; several are tried in order, such as those of a
    scheduler and of another one that would take over from it."""
    data_port: Port = 5001
    """Port at which the stage before connects."""
    port: Port = 50061
    """gRPC port for health checks and reflection."""
    http_port: Port = 50081
    """Port of the HTTP side door."""
    redis_url: tuple[str, ...] = ()
    """Where cached pages are stored, such as redis://127.0.0.1:6379; nothing without it. Given
    several times as for hicache-server, in the same order."""
    drain_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that the scheduler gets on SIGTERM to let others take this worker's place."""
    redis_username: str = ""
    """Name of the ACL user at Redis."""
    redis_password_file: Path | None = None
    """File of its password; read at every connection."""
    redis_ca_certs: Path | None = None
    """PEM file of the authorities of a Redis with TLS (rediss://); the system's if not given."""
    transport: Literal["ucx", "grpc"] = "ucx"
    """How activations travel."""
    threads: Annotated[int, Field(ge=1)] = 1
    """CPU threads for compute on the CPU."""
    max_total_tokens: Annotated[int, Field(ge=1)] | None = None
    """KV capacity, in tokens; if not given, 16384 on a CPU, and on a GPU what --mem-fraction
    leaves."""
    mem_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the GPU memory that is free after loading and warm-up for keys and values. Workers
    that share a GPU do not know of each other: give them --max-total-tokens."""
    cuda_graph_max_bs: Annotated[int, Field(ge=0, le=1024)] = 64
    """Most rows of a decode microbatch that is launched as one CUDA graph; 0 launches all kernel by
    kernel."""
    warmup_mode: Literal["parallel", "serial", "off"] = "parallel"
    """Before it serves, a stage on a GPU compiles its kernels by dummy microbatches: at once with
    all other stages, or after the other workers of this machine that began earlier. off leaves it
    to the first requests."""
    hicache_ratio: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0
    """Host memory for cached pages, as a multiple of the KV capacity: what has no more room on the
    device stays there. 0 has none."""
    hicache_size: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """The same in GB of this worker; goes before --hicache-ratio."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")] = "auto"
    """Where weights, activations and KV are: cpu, cuda or cuda:N; auto is the first GPU, or the
    CPU where there is none."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Element type of weights, activations and KV; auto is what config.json declares, on a GPU
    bfloat16 in place of float32."""
    load_format: Literal["auto", "dummy"] = "auto"
    """auto reads the folder's weights; dummy makes random ones of config.json, to measure."""
    quantization: Literal["auto", "fp8"] = "auto"
    """fp8 makes eight-bit weights of the layers' matrices as they are loaded, scaled by blocks of
    128 x 128; Hopper GPUs multiply them so. auto leaves weights as the checkpoint has them."""
    profile: Literal["auto", "off"] = "auto"
    """auto measures what microbatches take before the worker serves, so that chunks can be planned;
    the next start finds it on disk. off measures nothing."""
    profile_timeout: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """Most seconds that this may take."""
    profile_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Longest chunk to measure, in tokens; 256 on a CPU and 8192 elsewhere if not given."""
    profile_dir: Path | None = None
    """Folder that keeps profiles; chunkmesh/profiles in the user's cache if not given."""

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if self.host in EVERY_NETWORK:
            raise ValueError(
                f"--host {self.host}: the stage before has to dial this worker: name the address of"
                " one network"
            )
        return self

    def host_bytes(self, kv_capacity_bytes: int) -> int:
        """Return how large the host memory for pages is to be."""
        if self.hicache_size is None:
            return int(self.hicache_ratio * kv_capacity_bytes)
        return int(self.hicache_size * 1e9)

    @property
    def data_address(self) -> HostPort:
        """Where activations arrive."""
        return HostPort(host=self.host, port=self.data_port)
