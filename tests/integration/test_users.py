"""Users share a mesh: limits at the door for each, and fair turns behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import Mesh, mesh
from tests.scripted_stage import Script, scripted_stages


class Users:
    """A mesh whose calls are those of whoever is named before they are made."""

    def __init__(self, running: Mesh) -> None:
        self.running = running
        self.ended: list[str] = []
        """Users of the requests that ended, in order."""
        self._names: list[str] = []
        running.open_calls._user_of = lambda: self._names.pop(0)

    async def ask(self, user: str, max_new_tokens: int = 1) -> asyncio.Task[pb.GenerateComplete]:
        """Begin a request of a user, once its call is open."""
        self._names.append(user)

        async def run() -> pb.GenerateComplete:
            params = pb.SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
            complete = await self.running.generate(text="x", sampling_params=params)
            self.ended.append(user)
            return complete

        asked = asyncio.create_task(run())
        async with asyncio.timeout(10):
            while self._names:
                await asyncio.sleep(0.001)
        return asked


@asynccontextmanager
async def users(tmp_path: Path, **settings: Any) -> AsyncIterator[Users]:
    """Run a mesh that serves one request at a time, 20 ms a token."""
    folder = write_bytes_folder(tmp_path / "m", config={"num_hidden_layers": 1})
    stages = scripted_stages(1, Script(delay_s=0.02))
    async with mesh(folder, stages, max_running_requests=1, **settings) as running:
        yield Users(running)
        await running.at_rest()


async def test_a_users_limit_is_told_at_the_door(tmp_path: Path) -> None:
    """With the limit's name and when to try again; another user is not refused."""
    async with users(tmp_path, max_queued_requests_per_user=1) as among:
        asked = [await among.ask("a", 20), await among.ask("a")]
        refused = await among.ask("a")
        asked.append(await among.ask("b"))
        (error,) = await asyncio.gather(refused, return_exceptions=True)
        await asyncio.gather(*asked)
    assert isinstance(error, grpc.aio.AioRpcError)
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is error.code()
    assert "--max-queued-requests-per-user" in str(error.details())
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert 1 == retry.retry_delay.seconds


async def test_a_flood_of_one_user_does_not_delay_another(tmp_path: Path) -> None:
    """Forty of one wait; the one of another comes next but one."""
    async with users(tmp_path) as among:
        flood = [await among.ask("a", 20), *[await among.ask("a") for _ in range(40)]]
        single = await among.ask("b")
        await asyncio.gather(*flood, single)
    assert among.ended.index("b") <= 3


async def test_a_full_queue_makes_room_for_another_user(tmp_path: Path) -> None:
    """The last of the flood is refused after all, while it waits; it can come again."""
    async with users(tmp_path, max_queued_requests=3) as among:
        flood = [await among.ask("a", 20), *[await among.ask("a") for _ in range(3)]]
        single = await among.ask("b")
        *first, last = await asyncio.gather(*flood, return_exceptions=True)
        assert 1 == (await single).completion_tokens
    assert [20, 1, 1] == [getattr(each, "completion_tokens", each) for each in first]
    assert isinstance(last, grpc.aio.AioRpcError)
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is last.code()
    assert "made room for another user's" in str(last.details())
