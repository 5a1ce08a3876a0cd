"""`chunkmesh up --certs`: a mesh of real processes over mutual TLS, with keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
from openai import OpenAI

from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.cli.mesh_options import GatewayOptions, MeshOptions
from deploy.certs.certificates import write_all
from tests.cli_run import run_cli

BLUE = "blue-key-0123456789"


async def test_chunkmesh_up_over_tls(tiny: Path, tmp_path: Path) -> None:
    """Real processes: all links are TLS, and no command line of them tells a secret."""
    write_all(tmp_path / "certs")
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(BLUE)
    options = MeshOptions(
        model_path=tiny,
        certs=tmp_path / "certs",
        page_tokens=16,
        scheduler_flags=("--api-key-file", str(keys)),
        gateway=GatewayOptions(),
        ready_timeout_s=90,
    )

    def use() -> tuple[list[str], int, int, str]:
        with LocalMesh(options) as running:
            words = [" ".join(psutil.Process(state.pid).cmdline()) for state in running.processes()]
            to = ("--server", running.scheduler_address, "--max-new-tokens", "2")
            plain = run_cli("generate", *to, "hi")
            ca = ("--ssl-ca-certs", str(tmp_path / "certs" / "ca.crt"))
            good = run_cli("generate", *to, *ca, "--api-key-file", str(keys), "hi")
            url = f"http://{running.endpoints.gateway}/v1"
            with OpenAI(base_url=url, api_key=BLUE, max_retries=0) as client:
                (model,) = client.models.list()
            return words, plain.exit_code, good.exit_code, model.id

    words, plain, good, model = await asyncio.to_thread(use)
    assert (1, 0, tiny.name) == (plain, good, model)
    assert not any(BLUE in line for line in words)
