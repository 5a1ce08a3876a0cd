"""The command `chunkmesh demo`: a two-stage mesh answers, shows its pipeline and its cache."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from chunkmesh.cli import demo_prompt
from chunkmesh.cli.answer import follow
from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.demo_folder import model_folder
from chunkmesh.cli.demo_report import Run, links_text, run_table, timelines_text
from chunkmesh.cli.exits import reported
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.cli.mesh_table import MeshTable
from chunkmesh.cli.output import output_console
from chunkmesh.cli.stores_settled import wait_until_settled
from chunkmesh.errors import ChunkMeshError, ConfigError, reason_of
from chunkmesh.v1 import generation_pb2 as pb

_READY_TIMEOUT_S = 120.0
_LONG_PROMPT_TOKENS = 3000


class DemoFailed(ChunkMeshError):
    """The demo ran but did not show what it promises."""


app = typer.Typer()


@app.command(cls=Command)
def demo(
    *,
    model_path: Annotated[str, typer.Option(help="A Hugging Face model folder, or demo.")] = "demo",
    prompt_tokens: Annotated[
        int, typer.Option(min=200, help="Length of the long prompt, about.")
    ] = _LONG_PROMPT_TOKENS,
    picture: Annotated[Path, typer.Option(help="Where the timeline's picture goes.")] = Path(
        "chunkmesh-demo.png"
    ),
) -> None:
    """Start a two-stage mesh and show a chat, a long prompt, and the same prompt from the cache."""
    with reported():
        if not picture.absolute().parent.is_dir():
            raise ConfigError(f"--picture {picture}: there is no folder {picture.parent}")
        options = MeshOptions(model_path=model_folder(model_path), ready_timeout_s=_READY_TIMEOUT_S)
        table = MeshTable(Console(stderr=True))
        with table, LocalMesh(options, table.show) as mesh:
            table.close()
            pids = [state.pid for state in mesh.processes()]
            runs, links = _show(mesh, prompt_tokens)
        left = [pid for pid in pids if _runs(pid)]
        _report(runs, links, picture)
        if left:
            raise DemoFailed(f"processes are left: {left}")
        if problem := problem_of(runs):
            raise DemoFailed(problem)


def _show(mesh: LocalMesh, prompt_tokens: int) -> tuple[tuple[Run, ...], str]:
    """Run the three requests and return them, and the links' description."""
    hicache = mesh.endpoints.hicache
    with GenerationClient(mesh.endpoints.scheduler) as client:
        info = client.server_info()
        print(f"\nuser: {demo_prompt.QUESTION}\nassistant: ", end="", flush=True)
        short = _run(client, "short chat", demo_prompt.short_chat())
        long_chat = demo_prompt.long_chat(prompt_tokens, client.count_tokens)
        print(f"\nuser: a log of about {prompt_tokens} tokens and a question\nassistant: ", end="")
        cold = _run(client, "long prompt", long_chat)
        if hicache is not None:
            wait_until_settled(hicache.grpc)
        print("\nuser: the same again\nassistant: ", end="", flush=True)
        cached = _run(client, "the same again", long_chat)
    mesh.check()
    return (short, cold, cached), links_text(info)


def _run(client: GenerationClient, name: str, chat: pb.Chat) -> Run:
    request = pb.GenerateRequest(
        chat=chat,
        sampling_params=pb.SamplingParams(temperature=0, max_new_tokens=48),
        stream=True,
        return_progress=True,
        return_timeline=True,
    )
    with closing(client.generate(request)) as replies:
        return Run(name=name, complete=follow(replies, text_to=sys.stdout).outputs[0])


def _report(runs: tuple[Run, ...], links: str, picture: Path) -> None:
    """Print table and timelines, and draw the picture."""
    from chunkmesh.cli import timeline_picture  # noqa: PLC0415 - matplotlib comes with an extra

    console = output_console()
    console.print()
    console.print(run_table(runs))
    console.print(links, highlight=False)
    long_runs = runs[1:]
    print(timelines_text(long_runs, width=min(console.width, 140) - 1))
    panels = [
        timeline_picture.Panel(title=run.headline(), timeline=run.timeline()) for run in long_runs
    ]
    try:
        timeline_picture.save(panels, picture)
    except OSError as error:
        raise DemoFailed(f"cannot write {picture}: {reason_of(error)}") from error
    print(f"\npicture: {picture.resolve()}")


def problem_of(runs: tuple[Run, ...]) -> str | None:
    """Say what the runs fail to show; None if all is well."""
    short, cold, cached = (run.complete for run in runs)
    if not short.text.strip():
        return "the short prompt got no answer"
    if cold.cached_tokens:
        return f"the first long run found {cold.cached_tokens} tokens cached, expected none"
    if cached.cached_tokens <= cached.prompt_tokens // 2:
        return f"the second long run found only {cached.cached_tokens} tokens cached"
    if list(cold.output_ids) != list(cached.output_ids):
        return "the second long run gave another answer than the first"
    if len(cold.chunk_tokens) < 2 or not cold.timeline:
        return "the long prompt was not cut into chunks"
    return None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
