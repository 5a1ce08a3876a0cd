"""hicache-admin against a HiCache in this process, at times as a real one: output and status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import structlog
from typer.testing import CliRunner

from chunkmesh import __version__
from chunkmesh.grpc_client import channel
from chunkmesh.kv_store import KvStore
from chunkmesh.pages import extend_chain
from chunkmesh.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    hicache_pb2,
    hicache_pb2_grpc,
)
from hicache.admin import app
from hicache.server import running
from hicache.settings import HiCacheSettings
from tests.eventually import eventually
from tests.hicache_admin import Ended, admin
from tests.page_samples import FORM, NAMESPACE, encoded
from tests.valkey import Valkey

PROMPT = "x" * 40
WAIT_S = 60
PAGE_BYTES = FORM.model_layers * FORM.layer_bytes


class ByteTokenizer(generation_pb2_grpc.GenerationServicer):
    """A scheduler that can only tokenize: one id a byte."""

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, _context: Any
    ) -> generation_pb2.TokenizeResponse:
        """Return ids and digests."""
        ids = list(request.text.encode()) or list(request.input_ids.ids)
        return generation_pb2.TokenizeResponse(
            input_ids=ids,
            page_digests=digests_of(ids),
            page_tokens=FORM.page_tokens,
            namespace=NAMESPACE,
        )


def digests_of(ids: list[int]) -> tuple[bytes, ...]:
    """Return the digests of a prompt's full pages."""
    return extend_chain(NAMESPACE, np.array(ids, dtype=np.uint32), FORM.page_tokens)


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    """Keep the server's log lines from standing among what commands print."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
async def hicache(valkey: Valkey) -> AsyncIterator[str]:
    """Run a HiCache that knows of PROMPT's two pages; the second lacks a layer."""
    digests = digests_of(list(PROMPT.encode()))
    store = KvStore(valkey.url)
    store.write_pages(encoded(digests, range(1, 4)))
    store.write_pages(encoded(digests[:1], range(1)))
    store.close()
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    async with running(settings, ping_s=0.05) as address:
        async with channel(address) as link:
            stub = hicache_pb2_grpc.HiCacheStub(link)

            async def is_known() -> bool:
                return (await stub.GetStats(hicache_pb2.GetStatsRequest())).num_pages == 1

            await eventually(is_known)
        yield str(address)


@contextlib.asynccontextmanager
async def scheduler() -> AsyncIterator[str]:
    """Run a scheduler that can tokenize."""
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(
        ByteTokenizer(),  # type: ignore[abstract]
        server,
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def process(*arguments: str) -> Ended:
    """Run the command as users do."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from hicache.admin import main; main()"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(started.communicate(), WAIT_S)
    except TimeoutError:
        started.kill()
        raise
    assert started.returncode is not None
    return Ended(status=started.returncode, output=output.decode(), errors=errors.decode())


def test_version() -> None:
    """--version prints the version alone and asks nobody."""
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{__version__}\n"


async def test_stats(hicache: str) -> None:
    """Scripts read the counts under the names of the proto."""
    ended = await process("--hicache", hicache, "stats", "--json")
    assert ended.status == 0
    fields = [field.name for field in hicache_pb2.GetStatsResponse.DESCRIPTOR.fields]
    assert list(ended.object) == fields
    assert (ended.object["num_pages"], ended.object["num_partial_pages"]) == (1, 1)
    assert ended.object["num_bytes"] == PAGE_BYTES + 3 * FORM.layer_bytes
    plain = await admin("--hicache", hicache, "stats")
    assert plain.status == 0
    assert "partial pages" in plain.output


async def test_ping_shows_down_then_up(hicache: str, valkey: Valkey) -> None:
    """O20 (c): the state of Redis is seen from outside."""
    up = await process("--hicache", hicache, "ping", "--json")
    assert (up.status, up.object["redis"], up.object["redis_version"]) == (0, "up", "valkey 7.2.4")
    valkey.stop()
    await eventually(lambda: has_fault(hicache, expected=True))
    down = await admin("--hicache", hicache, "ping", "--json")
    assert (down.status, down.object["redis"]) == (1, "down")
    assert down.object["redis_fault"]
    valkey.start()
    await eventually(lambda: has_fault(hicache, expected=False))
    again = await admin("--hicache", hicache, "ping", "--json")
    assert (again.status, again.object["redis"]) == (0, "up")


async def has_fault(hicache: str, *, expected: bool) -> bool:
    """Whether a HiCache says that Redis is away, or not, as expected."""
    async with grpc.aio.insecure_channel(hicache) as link:
        stub = hicache_pb2_grpc.HiCacheStub(link)
        stats = await stub.GetStats(hicache_pb2.GetStatsRequest())
    return bool(stats.redis_fault) == expected


async def test_clear_counts_first_and_deletes_when_told(hicache: str, valkey: Valkey) -> None:
    """A slip must not cost a warm cache."""
    refused = await admin("--hicache", hicache, "clear")
    assert refused.status == 2
    assert "--yes" in refused.errors
    dry = await admin("--hicache", hicache, "clear", "--dry-run", "--json")
    num_bytes = PAGE_BYTES + 3 * FORM.layer_bytes
    assert dry.object == {"dry_run": True, "num_pages": 2, "num_bytes": num_bytes}
    with valkey.client() as client:
        assert len(valkey.page_keys()) == 2
        done = await process("--hicache", hicache, "clear", "--yes", "--json")
        assert done.object == {"dry_run": False, "num_pages": 2, "num_bytes": num_bytes}
        assert valkey.page_keys() == []
        assert client.exists("cm-audit") == 1


@pytest.mark.parametrize("source", ["--text", "--prompt-file", "--tokens"])
async def test_lookup(hicache: str, tmp_path: pathlib.Path, source: str) -> None:
    """What is cached of a prompt, page range by page range, with its layers."""
    file = tmp_path / "prompt"
    tokens = json.dumps(list(PROMPT.encode()))
    file.write_text(tokens if source == "--tokens" else PROMPT, encoding="utf-8")
    given = PROMPT if source == "--text" else str(file)
    async with scheduler() as address:
        command = ("--hicache", hicache, "lookup", "--scheduler", address, source, given)
        ended = await admin(*command, "--json")
        plain = await admin(*command)
    assert (ended.status, plain.status) == (0, 0)
    assert ended.object == {
        "namespace": NAMESPACE.hex(),
        "num_tokens": 40,
        "page_tokens": 16,
        "num_pages": 2,
        "cached_tokens": 16,
        "hit_tokens": 16,
        "layers": [
            {"first": 0, "last": 1, "cached_tokens": 16},
            {"first": 1, "last": 4, "cached_tokens": 32},
        ],
        "pages": [
            {"first": 0, "last": 1, "layers": [[0, 4]], "visible": True, "num_hits": 0},
            {"first": 1, "last": 2, "layers": [[1, 4]], "visible": False, "num_hits": 0},
        ],
    }
    assert "1-3" in plain.output


async def test_a_hit_leaves_the_last_token(hicache: str) -> None:
    """O16: a prompt of exactly one page is cached but computed."""
    async with scheduler() as address:
        command = ("lookup", "--scheduler", address, "--text", PROMPT[:16], "--json")
        ended = await admin("--hicache", hicache, *command)
    assert (ended.object["cached_tokens"], ended.object["hit_tokens"]) == (16, 0)


async def test_watch_tells_what_happens(hicache: str) -> None:
    """One object a line as it happens, until enough were shown."""
    watching = asyncio.create_task(process("--hicache", hicache, "watch", "--count=4", "--json"))
    digests = digests_of(list(PROMPT.encode()))
    async with grpc.aio.insecure_channel(hicache) as link:
        stub = hicache_pb2_grpc.HiCacheStub(link)
        while not watching.done():
            await stub.Match(hicache_pb2.MatchRequest(digests=digests))
            await asyncio.sleep(0.05)
    ended = await watching
    assert (0, "") == (ended.status, ended.errors)
    lines = [json.loads(line) for line in ended.output.splitlines()]
    assert 4 == len(lines)
    for line in lines:
        assert line.pop("unix_ms") > 1_700_000_000_000
        assert line == {
            "kind": "matched",
            "namespace": NAMESPACE.hex(),
            "num_pages": 1,
            "num_queried_pages": 2,
            "num_bytes": PAGE_BYTES,
            "digest": digests[0].hex(),
            "text": "",
        }


async def test_a_prompt_that_nobody_sent_is_not_found(hicache: str) -> None:
    """Scripts tell "nothing there" from "did not work"."""
    async with scheduler() as address:
        command = ("lookup", "--scheduler", address, "--text", "y" * 40, "--json")
        ended = await admin("--hicache", hicache, *command)
    assert ended.status == 3
    assert ended.object["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("lookup",), "--text"),
        (("lookup", "--text", "a", "--tokens", "b"), "--text"),
        (("lookup", "--tokens", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--hicache", "nowhere", "stats"), "--hicache"),
        (("clear", "--yes", "--dry-run"), "--dry-run"),
        (("lookup", "--text", "\udcff"), "--text"),
        (("lookup", "--text", "a", "--cache-salt", "\udcff"), "--cache-salt"),
        (("quota", "set", "\udcff", "1GiB", "--dry-run"), "cache_salt"),
        (("tree", "--depth", "9" * 30), "--depth"),
        (("unknown",), "unknown"),
    ],
)
def test_wrong_usage(command: tuple[str, ...], words: str) -> None:
    """Status 2, and the flag at fault is named."""
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 2
    assert words in ended.stderr


def test_tokens_of_endless_depth(tmp_path: pathlib.Path) -> None:
    """A file of brackets is wrong usage, not an error of the program."""
    file = tmp_path / "tokens.json"
    file.write_text("[" * 100_000)
    ended = CliRunner().invoke(app, ["lookup", "--tokens", str(file)])
    assert (2, True) == (ended.exit_code, str(file) in ended.stderr)


class EndlessScheduler(ByteTokenizer):
    """A scheduler whose requests never end."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def Generate(
        self, _request: generation_pb2.GenerateRequest, _context: Any
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """Wait for the caller to go."""
        self.begun.set()
        try:
            await asyncio.sleep(3600)
            yield generation_pb2.GenerateResponse()
        finally:
            self.ended.set()


async def test_warm_ends_by_ctrl_c(hicache: str, tmp_path: pathlib.Path) -> None:
    """A prompt that takes an hour does not keep the terminal, nor the mesh."""
    file = tmp_path / "prompts.txt"
    file.write_text("a b c\n" * 3, encoding="utf-8")
    scheduler = EndlessScheduler()  # type: ignore[abstract]
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from hicache.admin import main; main()", "--hicache", hicache),
        *("warm", str(file), "--scheduler", f"127.0.0.1:{port}", "--yes"),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await asyncio.wait_for(scheduler.begun.wait(), WAIT_S)
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), WAIT_S)
        await asyncio.wait_for(scheduler.ended.wait(), WAIT_S)
    finally:
        if process.returncode is None:
            process.kill()
        await server.stop(0)
    assert (130, False) == (process.returncode, b"Traceback" in errors)


async def test_a_server_that_is_not_there() -> None:
    """Status 1 and one line, no stack."""
    ended = await process("--hicache", "127.0.0.1:1", "stats")
    assert ended.status == 1
    assert ended.errors.startswith("hicache-admin: ")
    assert "Traceback" not in ended.errors
