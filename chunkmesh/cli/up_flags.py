"""The flags of `chunkmesh up`, each with its help text."""

from __future__ import annotations

import dataclasses
import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.cli.mesh_options import GatewayOptions
from chunkmesh.cli.partition import Partition as PartitionName
from chunkmesh.errors import ConfigError

_MAX_PORT = 65535


class TransportName(StrEnum):
    """Data planes between workers."""

    UCX = "ucx"
    GRPC = "grpc"


class DeviceName(StrEnum):
    """Kinds of devices that stages compute on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeName(StrEnum):
    """Element types of weights, activations and KV."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class QuantizationName(StrEnum):
    """What weights are made of when they are loaded."""

    AUTO = "auto"
    FP8 = "fp8"


SchedulerFlags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- SCHEDULER-FLAGS", help="After --, flags for the scheduler as they are."
    ),
]
ModelPath = Annotated[str, typer.Option(help="A Hugging Face model folder, or demo.")]
Stages = Annotated[int | None, typer.Option(min=1, help="Number of stages. Default 2.")]
Layers = Annotated[
    str | None, typer.Option(help="Layers of each stage, such as 0-9,10-29; instead of --stages.")
]
Replicas = Annotated[
    str,
    typer.Option(
        help="Workers of each stage: one number for all, or one for each, such as 1,2. Full sets"
        " are routes of their own, what is left over are spares."
    ),
]
Device = Annotated[
    DeviceName, typer.Option(help="What stages compute on; auto is GPUs where there are any.")
]
Devices = Annotated[
    str | None,
    typer.Option(help="GPUs that stages take in turn, such as 0,1. Default: all that torch sees."),
]
Partition = Annotated[
    PartitionName,
    typer.Option(
        help="even: as many layers each, the remainder at later stages; auto: the slowest stage as"
        " fast as can be, embedding and head counted, by the scheduler's --latency-model if it has"
        " one, else by what the layers multiply."
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="Compute threads of each stage.")]
Transport = Annotated[TransportName, typer.Option(help="How activations travel.")]
Dtype = Annotated[
    DtypeName | None,
    typer.Option(help="Weights, activations and KV. Default auto: as config.json declares."),
]
Quantization = Annotated[
    QuantizationName | None,
    typer.Option(help="fp8 quantises the layers' weights as they are loaded. Default auto."),
]
PageSize = Annotated[
    int | None, typer.Option(min=1, help="Tokens a page holds. Default 128 on GPUs, else 64.")
]
ChunkedPrefillSize = Annotated[
    int | None,
    typer.Option(
        min=1, help="Most prefill tokens in one microbatch. Default 8192 on GPUs, else 256."
    ),
]
RedisUrl = Annotated[str | None, typer.Option(help="Use this Redis instead of starting one.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="No prefix cache.")]
Standby = Annotated[
    bool,
    typer.Option(
        "--standby",
        help="Start a second scheduler that takes over when the first one is lost: by a lease in"
        " the Redis that is started or given, under a new name unless --mesh-name stands after --.",
    ),
]
Host = Annotated[str, typer.Option(help="Where the scheduler listens; the rest is on loopback.")]
MaxTotalTokens = Annotated[
    int | None, typer.Option(min=1, help="KV capacity of each worker, in tokens.")
]
Certs = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Use TLS with the certificates of this folder, from `make certs`."
    ),
]
LogDir = Annotated[Path | None, typer.Option(help="Keep logs here. Default: a temporary folder.")]
ReadyTimeout = Annotated[float, typer.Option(min=0, help="Seconds until all must serve.")]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print the endpoints as one line of JSON when ready.")
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortFlags:
    """Where scheduler and hicache-server listen."""

    port: Annotated[
        int | None,
        typer.Option(min=1, max=_MAX_PORT, help="Users' port. Default 50051 or the next."),
    ] = None
    internal_port: Annotated[
        int | None,
        typer.Option(min=1, max=_MAX_PORT, help="Workers' port. Default 50052 or the next."),
    ] = None
    http_port: Annotated[
        int | None, typer.Option(min=1, max=_MAX_PORT, help="Scheduler's side door. Default any.")
    ] = None
    hicache_port: Annotated[
        int | None,
        typer.Option(min=1, max=_MAX_PORT, help="HiCache's port. Default 50071 or the next."),
    ] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlags:
    """Whether chunkmesh-gateway runs beside the mesh, and where."""

    gateway: Annotated[
        bool,
        typer.Option("--gateway", help="Also serve the OpenAI API over HTTP: chunkmesh-gateway."),
    ] = False
    gateway_port: Annotated[
        int | None, typer.Option(min=1, max=_MAX_PORT, help="Its port. Default 8000 or the next.")
    ] = None

    def options(self) -> GatewayOptions | None:
        """Return what the mesh is told.

        Raises:
            ConfigError: a flag would be without effect, or the gateway would end at once.
        """
        if not self.gateway:
            if self.gateway_port is not None:
                raise ConfigError("--gateway-port needs --gateway")
            return None
        if importlib.util.find_spec("fastapi") is None:
            raise ConfigError("--gateway needs FastAPI: pip install 'chunkmesh[gateway]'")
        return GatewayOptions(port=self.gateway_port)
