"""A worker's two links of one epoch: whatever was made of them is gone when the next one begins."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation, LinkSpec, Sender
from chunkmesh.transports.memory import MemoryNetwork, MemoryTransport
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.links import Links, NotFormed
from tests.scripted_stage import Script, ScriptedStage

_EPOCH = 7
_INBOUND, _OUTBOUND = b"i" * 16, b"o" * 16


def _spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work)


class _MiddleStage:
    """The second stage of three, and the first one, which dials it; the third is not there."""

    def __init__(self) -> None:
        """Prepare both ends of the first link."""
        network = MemoryNetwork()
        description = ScriptedStage(1, 2, 3, Script()).description
        self._before = MemoryTransport(network, "before")
        self.transport = MemoryTransport(network, "middle")
        self.spec = LinkSpec(
            epoch=_EPOCH,
            token=_INBOUND,
            boundary_layer=1,
            hidden_size=description.hidden_size,
            dtype=description.dtype,
            max_tokens=4,
        )
        self.links = Links(
            join=pb.Join(
                epoch=_EPOCH,
                stage_index=1,
                num_stages=3,
                next_address="nobody",
                inbound_token=_INBOUND,
                outbound_token=_OUTBOUND,
                max_microbatch_tokens=4,
            ),
            transport=self.transport,
            description=description,
            peer=None,
            on_fault=lambda _side, _reason: None,
            spawn=_spawn,
        )

    async def dialled(self) -> Sender:
        """Let the stage before dial, as it does once all have said that they are ready."""
        await self._before.start()
        await self.transport.start()
        await self.links.arm()
        sender = await self._before.dial("middle", self.spec)
        await asyncio.sleep(0)
        return sender


async def _is_closed(sender: Sender, spec: LinkSpec) -> bool:
    """Whether the other end of a link is gone; else it would keep its activation waiting."""
    payload = torch.zeros(spec.max_bytes // spec.max_tokens, dtype=torch.uint8)
    try:
        async with asyncio.timeout(1):
            await sender.send(Activation(seq_no=0, num_tokens=1), payload)
    except LinkError:
        return True
    except TimeoutError:
        return False
    return False


async def test_a_link_that_came_is_closed_where_the_other_one_failed() -> None:
    """A next stage that keeps dying must not leave a link of the stage before behind each time."""
    stage = _MiddleStage()
    sender = await stage.dialled()
    with pytest.raises(NotFormed):
        await stage.links.connect()
    await stage.links.close()
    assert await _is_closed(sender, stage.spec)


async def test_a_link_that_came_before_connect_is_closed() -> None:
    """A route that is given up while it forms leaves nothing either."""
    stage = _MiddleStage()
    sender = await stage.dialled()
    await stage.links.close()
    assert await _is_closed(sender, stage.spec)
