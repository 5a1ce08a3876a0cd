"""The command `chunkmesh up`: a whole mesh on this machine, until Ctrl-C."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from chunkmesh.cli import gpus, up_flags
from chunkmesh.cli.auto_partition import auto_ranges
from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.demo_folder import model_folder
from chunkmesh.cli.exits import EXIT_INTERRUPTED, reported
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.cli.mesh_table import MeshTable
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.cli.partition import Partition, inclusive, parse_ranges, parse_replicas
from chunkmesh.cli.process_family import ChildState
from chunkmesh.cli.scheduler_words import check_own_words, check_scheduler_words, named_mesh
from chunkmesh.cli.stop_signals import StopRequested, StopSignals
from chunkmesh.errors import ConfigError
from chunkmesh.hidden import without_passwords
from chunkmesh.known_settings import variable_of
from chunkmesh.layers import LayerRange

DEFAULT_PAGE_TOKENS = 64
"""The scheduler's, which a test holds it to."""
_DEFAULT_STAGES = 2
_CHECK_S = 0.2
_GPU_PAGE_TOKENS = 128
"""Pages that FlashAttention reads fastest on Hopper."""
_GPU_CHUNK_TOKENS = 8192


class UpCommand(Command):
    """Knows flags of the mesh's services from those that nobody has."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as in Command
        """Parse the command line."""
        own = {flag for parameter in self.get_params(ctx) for flag in parameter.opts}
        with reported():
            check_own_words(list(itertools.takewhile(lambda word: word != "--", args)), own)
        return super().parse_args(ctx, args)


app = typer.Typer()


@app.command(cls=UpCommand)
@takes_options
def up(
    scheduler_flags: up_flags.SchedulerFlags = None,
    *,
    model_path: up_flags.ModelPath,
    stages: up_flags.Stages = None,
    layers: up_flags.Layers = None,
    partition: up_flags.Partition = Partition.EVEN,
    replicas: up_flags.Replicas = "1",
    device: up_flags.Device = up_flags.DeviceName.AUTO,
    devices: up_flags.Devices = None,
    threads: up_flags.Threads = 1,
    transport: up_flags.Transport = up_flags.TransportName.UCX,
    dtype: up_flags.Dtype = None,
    quantization: up_flags.Quantization = None,
    page_size: up_flags.PageSize = None,
    chunked_prefill_size: up_flags.ChunkedPrefillSize = None,
    redis_url: up_flags.RedisUrl = None,
    no_cache: up_flags.NoCache = False,
    standby: up_flags.Standby = False,
    host: up_flags.Host = "127.0.0.1",
    ports: up_flags.PortFlags,
    gateway: up_flags.GatewayFlags,
    max_total_tokens: up_flags.MaxTotalTokens = None,
    certs: up_flags.Certs = None,
    log_dir: up_flags.LogDir = None,
    ready_timeout: up_flags.ReadyTimeout = 300.0,
    json_output: up_flags.JsonOutput = False,
) -> None:
    """Start Redis, hicache-server, the scheduler and the stage workers; Ctrl-C ends them all."""
    with reported():
        _check_exclusions(stages, layers, partition, ports.hicache_port, no_cache=no_cache)
        words = _scheduler_words(scheduler_flags or [], max_total_tokens, page_size)
        options = MeshOptions(
            model_path=(folder := model_folder(model_path)),
            num_stages=stages or _DEFAULT_STAGES,
            layers=_named_layers(folder, stages, layers, partition, words),
            replicas=parse_replicas(replicas),
            threads=threads,
            devices=(places := gpus.stage_devices(device.value, devices)),
            transport=transport.value,
            page_tokens=page_size or _on_gpus(places, _GPU_PAGE_TOKENS),
            chunked_prefill_tokens=chunked_prefill_size or _on_gpus(places, _GPU_CHUNK_TOKENS),
            redis_url=redis_url,
            cache=not no_cache,
            mesh_name=(named_mesh(words) or _new_mesh_name()) if standby else None,
            host=host,
            port=ports.port,
            internal_port=ports.internal_port,
            http_port=ports.http_port,
            hicache_port=ports.hicache_port,
            gateway=gateway.options(),
            scheduler_flags=words,
            worker_flags=_worker_flags(max_total_tokens, dtype, quantization),
            certs=_certs(certs),
            prefer_usual_ports=True,
            log_dir=log_dir,
            ready_timeout_s=ready_timeout,
        )
        _run(options, json_output=json_output)


def _new_mesh_name() -> str:
    """Return a name that no other mesh has in the same Redis."""
    return f"up-{secrets.token_hex(4)}"


def _named_layers(
    folder: Path,
    stages: int | None,
    layers: str | None,
    partition: Partition,
    words: Sequence[str],
) -> tuple[LayerRange, ...] | None:
    """Return the layers of each stage; None for an even split."""
    if layers is not None:
        return parse_ranges(layers)
    if partition is Partition.AUTO:
        return auto_ranges(folder, num_stages=stages or _DEFAULT_STAGES, scheduler_flags=words)
    return None


def _certs(folder: Path | None) -> Path | None:
    """Refuse a folder without an authority."""
    if folder is None:
        return None
    if not (folder / "ca.crt").is_file():
        raise ConfigError(f"--certs {folder}: no ca.crt there; `make certs` writes one")
    return folder.resolve()


def _on_gpus(devices: Sequence[str], tokens: int) -> int | None:
    """Return a default of stages on GPUs; the services' own holds elsewhere."""
    return tokens if any(name.startswith("cuda") for name in devices) else None


def _check_exclusions(
    stages: int | None,
    layers: str | None,
    partition: Partition,
    hicache_port: int | None,
    *,
    no_cache: bool,
) -> None:
    """Refuse flags of which one would be without effect."""
    if layers is not None and stages is not None:
        raise ConfigError("--stages and --layers exclude each other")
    if layers is not None and partition is Partition.AUTO:
        raise ConfigError("--layers and --partition auto exclude each other")
    if no_cache and hicache_port is not None:
        raise ConfigError("--hicache-port and --no-cache exclude each other")


def _scheduler_words(
    given: Sequence[str], max_total_tokens: int | None, page_size: int | None
) -> tuple[str, ...]:
    """Return the words for the scheduler, checked.

    A KV pool that holds no page is refused, as the scheduler would once the weights are loaded.
    Where the environment or a file may name the size of pages, it is left to the scheduler.
    """
    words = check_scheduler_words(given)
    elsewhere = {variable_of("page_size"), "CHUNKMESH_CONFIG"} & os.environ.keys()
    if any(word.partition("=")[0] == "--config" for word in words):
        elsewhere.add("--config")
    page_tokens = page_size or (None if elsewhere else DEFAULT_PAGE_TOKENS)
    if page_tokens and max_total_tokens is not None and max_total_tokens < page_tokens:
        raise ConfigError(
            f"--max-total-tokens {max_total_tokens}: at least one page of {page_tokens} tokens"
        )
    return words


def _worker_flags(
    max_total_tokens: int | None,
    dtype: up_flags.DtypeName | None,
    quantization: up_flags.QuantizationName | None,
) -> tuple[str, ...]:
    """Leave out what is not given: environment and files of the workers still count."""
    words: tuple[str, ...] = ()
    if max_total_tokens is not None:
        words += ("--max-total-tokens", str(max_total_tokens))
    if dtype is not None:
        words += ("--dtype", dtype.value)
    if quantization is not None:
        words += ("--quantization", quantization.value)
    return words


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
                    for news in mesh.check():
                        print(f"{news}\nothers stand in for it", file=sys.stderr)
                    time.sleep(_CHECK_S)
                print(f"{signals.received.name}: taking the mesh down", file=sys.stderr)
        except StopRequested as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error


def _as_json(mesh: LocalMesh) -> str:
    pids = {state.name: state.pid for state in mesh.processes()}
    fields = {**mesh.endpoints.as_fields(), "mesh_name": mesh.name}
    return json.dumps({**fields, "run_dir": str(mesh.run_dir), "pids": pids})


def _as_text(mesh: LocalMesh) -> str:
    endpoints = mesh.endpoints
    lines = [
        f"scheduler  {endpoints.scheduler}  (side door http://{endpoints.side_door})",
        *(
            f"{state.name:<10} {worker.data}  (layers {inclusive(worker.layers)},"
            f" side door http://{worker.side_door})"
            for state, worker in zip(_worker_states(mesh), endpoints.workers, strict=True)
        ),
    ]
    if (standby := endpoints.standby) is not None:
        doors = f"side door http://{standby.side_door}, lease {mesh.name}"
        lines.insert(1, f"standby    {standby.users}  ({doors})")
    if endpoints.hicache is not None:
        hicache = endpoints.hicache
        lines.append(f"hicache    {hicache.grpc}  (side door http://{hicache.side_door})")
        lines.append(f"redis      {without_passwords(hicache.redis_url)}")
    if endpoints.gateway is not None:
        lines.append(f"gateway    http://{endpoints.gateway}/v1  (OpenAI API)")
    lines.append(f"logs       {mesh.run_dir}")
    tls = "" if mesh.certs is None else f" --ssl-ca-certs {mesh.certs / 'ca.crt'}"
    lines.append(f'try        chunkmesh generate --server {endpoints.servers}{tls} "Hello"')
    return "\n".join([*lines, "Ctrl-C takes everything down."])


def _worker_states(mesh: LocalMesh) -> list[ChildState]:
    """Return the workers among the processes, in the order of their endpoints."""
    return [state for state in mesh.processes() if state.name.startswith("worker-")]
