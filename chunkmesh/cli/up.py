"""The command `chunkmesh up`: a whole mesh on this machine, until Ctrl-C."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from chunkmesh.cli.demo_folder import model_folder
from chunkmesh.cli.exits import EXIT_INTERRUPTED, reported
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.cli.mesh_table import MeshTable
from chunkmesh.cli.partition import inclusive, parse_ranges
from chunkmesh.cli.process_family import ChildState
from chunkmesh.cli.stop_signals import StopRequested, StopSignals
from chunkmesh.errors import ConfigError

_CHECK_S = 0.2


class TransportName(StrEnum):
    """Data planes between workers."""

    UCX = "ucx"
    GRPC = "grpc"


_Port = Annotated[int | None, typer.Option(min=1, max=65535)]


def up(
    scheduler_flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- SCHEDULER-FLAGS]", help="Passed to the scheduler as they are."),
    ] = None,
    *,
    model_path: Annotated[str, typer.Option(help="A Hugging Face model folder, or demo.")],
    stages: Annotated[int, typer.Option(min=1, help="Stages of an even split.")] = 2,
    layers: Annotated[
        str | None, typer.Option(help="Layers of each stage, such as 0-9,10-29; sets --stages.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of each stage.")] = 1,
    transport: Annotated[
        TransportName, typer.Option(help="How activations travel.")
    ] = TransportName.UCX,
    page_size: Annotated[int | None, typer.Option(min=1, help="Tokens a page holds.")] = None,
    chunked_prefill_size: Annotated[
        int | None, typer.Option(min=1, help="Most new tokens in one microbatch.")
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Use this Redis instead of starting one.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="No prefix cache.")] = False,
    host: Annotated[
        str, typer.Option(help="Where the scheduler listens; the rest stays on loopback.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Users' port. Default 50051 or the next.")
    ] = None,
    internal_port: _Port = None,
    http_port: _Port = None,
    hicache_port: _Port = None,
    max_total_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV capacity of each worker, in tokens.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Compute type of the workers.")] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Keep logs here. Default: a temporary folder.")
    ] = None,
    ready_timeout: Annotated[float, typer.Option(help="Seconds until all must serve.")] = 300.0,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the endpoints as one line of JSON when ready.")
    ] = False,
) -> None:
    """Start Redis, hicache-server, the scheduler and the stage workers; Ctrl-C ends them all."""
    with reported():
        options = MeshOptions(
            model_path=model_folder(model_path),
            num_stages=stages,
            layers=None if layers is None else parse_ranges(layers),
            threads=threads,
            transport=transport.value,
            page_tokens=page_size,
            chunked_prefill_tokens=chunked_prefill_size,
            redis_url=redis_url,
            cache=not no_cache,
            host=host,
            port=port,
            internal_port=internal_port,
            http_port=http_port,
            hicache_port=hicache_port,
            prefer_usual_ports=True,
            scheduler_flags=_checked_flags(scheduler_flags or []),
            worker_flags=_worker_flags(max_total_tokens, dtype),
            log_dir=log_dir,
            ready_timeout_s=ready_timeout,
        )
        _run(options, json_output=json_output)


def _checked_flags(words: list[str]) -> tuple[str, ...]:
    if words and not words[0].startswith("--"):
        raise ConfigError(f"{words[0]!r} is not expected here; scheduler flags go after --")
    return tuple(words)


def _worker_flags(max_total_tokens: int | None, dtype: str | None) -> tuple[str, ...]:
    flags: list[str] = []
    if max_total_tokens is not None:
        flags += ["--max-total-tokens", str(max_total_tokens)]
    if dtype is not None:
        flags += ["--dtype", dtype]
    return tuple(flags)


def _run(options: MeshOptions, *, json_output: bool) -> None:
    """Keep the mesh up until a signal or a failure.

    Raises:
        ChunkMeshError: the mesh could not start or a process of it died; all are down.
        typer.Exit: stopped before it was ready.
    """
    table = MeshTable(Console(stderr=True))

    def observe(states: tuple[ChildState, ...]) -> None:
        table.show(states)
        signals.check()

    mesh = LocalMesh(options, observe)
    with StopSignals(on_second=mesh.kill) as signals:
        try:
            with table, mesh:
                table.close()
                print(_as_json(mesh) if json_output else _as_text(mesh), flush=True)
                while signals.received is None:
                    mesh.check()
                    time.sleep(_CHECK_S)
                print(f"{signals.received.name}: taking the mesh down", file=sys.stderr)
        except StopRequested as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error


def _as_json(mesh: LocalMesh) -> str:
    pids = {state.name: state.pid for state in mesh.processes()}
    return json.dumps({**mesh.endpoints.as_fields(), "run_dir": str(mesh.run_dir), "pids": pids})


def _as_text(mesh: LocalMesh) -> str:
    endpoints = mesh.endpoints
    lines = [
        f"scheduler  {endpoints.scheduler}  (side door http://{endpoints.side_door})",
        *(
            f"worker-{index}   {worker.data}  (layers {inclusive(worker.layers)},"
            f" side door http://{worker.side_door})"
            for index, worker in enumerate(endpoints.workers)
        ),
    ]
    if endpoints.hicache is not None:
        hicache = endpoints.hicache
        lines.append(f"hicache    {hicache.grpc}  (side door http://{hicache.side_door})")
        lines.append(f"redis      {hicache.redis_url}")
    lines.append(f"logs       {mesh.run_dir}")
    lines.append(f'try        chunkmesh generate --server {endpoints.scheduler} "Hello"')
    return "\n".join([*lines, "Ctrl-C takes everything down."])
