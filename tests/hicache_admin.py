"""Runs hicache-admin in this process, in a thread beside the servers that it asks."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
from typer.testing import CliRunner

from chunkmesh.grpc_client import channel
from chunkmesh.kv_store import KvStore
from chunkmesh.pages import extend_chain
from chunkmesh.v1 import common_pb2, generation_pb2, generation_pb2_grpc, hicache_pb2_grpc
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import app
from hicache.server import running
from hicache.settings import HiCacheSettings
from tests.eventually import eventually
from tests.page_samples import FORM, NAMESPACE, encoded, parents
from tests.valkey import Valkey

INFO = pb.NamespaceInfo(
    fingerprint=bytes(range(32)),
    model="tiny",
    kv_dtype=FORM.dtype,
    page_tokens=FORM.page_tokens,
    rope="default 10000",
    salted=False,
)
PAGE_BYTES = FORM.model_layers * FORM.layer_bytes
SHARED = b"s" * 32
"""Two pages that both prompts begin with."""
LONG = SHARED + b"a" * 48 + b"tail"
SHORT = SHARED + b"b" * 16
NUM_PAGES = 6
"""Of both prompts together."""

Logs = list[MutableMapping[str, Any]]
Admin = Callable[..., Awaitable["Ended"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    errors: str

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON object that it printed."""
        value = json.loads(self.output)
        assert isinstance(value, dict)
        return value


async def admin(*arguments: str, answer: str = "") -> Ended:
    """Run a command; answer is what is typed where a test has given it a terminal."""
    return await asyncio.to_thread(run_admin, *arguments, answer=answer)


def run_admin(*arguments: str, answer: str = "") -> Ended:
    """Run a command where no loop of this thread runs."""
    result = CliRunner().invoke(app, arguments, input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(status=result.exit_code, output=result.stdout, errors=result.stderr)


@asynccontextmanager
async def hicache_over(valkey: Valkey, *, max_bytes: int = 0) -> AsyncIterator[str]:
    """Run a HiCache whose index is built, and yield its address."""
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,), max_bytes=max_bytes)
    async with running(settings, ping_s=0.05) as address:
        async with channel(address) as link:
            stub = hicache_pb2_grpc.HiCacheStub(link)

            async def is_ready() -> bool:
                stats = await stub.GetStats(pb.GetStatsRequest())
                return not (stats.rebuilding or stats.redis_fault)

            await eventually(is_ready)
        yield str(address)


async def store_pages(
    valkey: Valkey, hicache: str, digests: Sequence[bytes], *, layers: range = range(4)
) -> None:
    """Write a prompt's pages and report them, as a worker and a scheduler do."""
    pages = tuple(digests)
    store = KvStore(valkey.url)
    assert all(store.write_pages(encoded(pages, layers)))
    store.close()
    request = pb.CommitRequest(
        namespace=NAMESPACE,
        pages=[
            pb.CommittedPage(digest=digest, parent=parent)
            for digest, parent in zip(pages, parents(pages), strict=True)
        ],
        layers=common_pb2.LayerRange(first=layers.start, last=layers.stop),
        model_layers=FORM.model_layers,
        page_bytes=len(layers) * FORM.layer_bytes,
        info=INFO,
    )
    async with grpc.aio.insecure_channel(hicache) as link:
        await hicache_pb2_grpc.HiCacheStub(link).Commit(request)


class ByteTokenizer(generation_pb2_grpc.GenerationServicer):
    """A scheduler that can only tokenize: one id a byte; all salts but one are NAMESPACE."""

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, _context: Any
    ) -> generation_pb2.TokenizeResponse:
        """Return ids, digests and the namespace."""
        ids = list(request.text.encode()) or list(request.input_ids.ids)
        namespace = bytes(32) if request.cache_salt == "other" else NAMESPACE
        return generation_pb2.TokenizeResponse(
            input_ids=ids,
            page_digests=prompt_digests(bytes(ids)),
            page_tokens=FORM.page_tokens,
            namespace=namespace,
        )


def prompt_digests(prompt: bytes) -> tuple[bytes, ...]:
    """Return the digests of a prompt's full pages."""
    ids = np.frombuffer(prompt, dtype=np.uint8).astype(np.uint32)
    return extend_chain(NAMESPACE, ids, FORM.page_tokens)


@asynccontextmanager
async def byte_tokenizer() -> AsyncIterator[str]:
    """Run such a scheduler and yield its address."""
    server = grpc.aio.server()
    servicer = ByteTokenizer()  # type: ignore[abstract]
    generation_pb2_grpc.add_GenerationServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


LONG_PAGES = prompt_digests(LONG)
SHORT_PAGES = prompt_digests(SHORT)
