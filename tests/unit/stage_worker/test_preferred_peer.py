"""A --peer is dialled first as long as it may be the next stage, and never waited for long."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
import torch

from chunkmesh.errors import LinkError, StaleEpoch
from chunkmesh.transports.base import LinkSpec, Sender, Transport
from stage_worker import preferred_peer
from stage_worker.highest_term import HighestTerm
from stage_worker.preferred_peer import PreferredPeer

SPEC = LinkSpec(
    epoch=1,
    token=b"t" * 16,
    boundary_layer=1,
    hidden_size=8,
    dtype=torch.float32,
    max_tokens=16,
)


class Dials:
    """A transport that reaches some addresses, waits for ever at others, and finds nobody else."""

    def __init__(self, *reached: str, hangs: str = "") -> None:
        self.dialled: list[str] = []
        self._reached = reached
        self._hangs = hangs

    async def dial(self, address: str, _spec: LinkSpec) -> Sender:
        """Reach it, or not."""
        self.dialled.append(address)
        if address == self._hangs:
            await asyncio.Event().wait()
        if address not in self._reached:
            raise LinkError(f"no worker answers at {address}")
        return cast("Sender", address)


async def dialled(peer: PreferredPeer, dials: Dials, told: str) -> list[str]:
    """Dial the next stage; return which addresses were tried."""
    dials.dialled.clear()
    await peer.dial(cast("Transport", dials), SPEC, told)
    return dials.dialled


async def test_another_name_of_the_next_stage_is_preferred() -> None:
    """Such as its address on a faster network."""
    dials, peer = Dials("fast", "slow"), PreferredPeer("fast")
    assert await dialled(peer, dials, "slow") == ["fast"]
    assert await dialled(peer, dials, "slow") == ["fast"]


async def test_a_dead_peer_is_gone_round_each_time() -> None:
    """It may come back."""
    dials, peer = Dials("next"), PreferredPeer("dead")
    assert await dialled(peer, dials, "next") == ["dead", "next"]
    assert await dialled(peer, dials, "next") == ["dead", "next"]


@pytest.mark.parametrize("name", ["first", "fast"])
async def test_a_peer_that_was_met_as_another_worker_is_not_asked(name: str) -> None:
    """It was replaced, perhaps because it hangs: to dial it would cost the takeover its time."""
    dials, peer = Dials("first", "fast", "spare"), PreferredPeer(name)
    assert await dialled(peer, dials, "first") == [name]
    assert await dialled(peer, dials, "spare") == ["spare"]
    assert await dialled(peer, dials, "first") == [name]


async def test_a_peer_that_hangs_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel may take the connection of a process that is stopped."""
    monkeypatch.setattr(preferred_peer, "_ANSWER_S", 0.01)
    assert await dialled(PreferredPeer("x"), Dials("next", hangs="x"), "next") == ["x", "next"]


def test_a_scheduler_of_an_older_term_is_not_obeyed() -> None:
    """Two schedulers that both think they are in charge must not share a worker."""
    term = HighestTerm()
    for epoch in ((1 << 32) + 5, (1 << 32) + 1, 2 << 32):
        term.check(epoch)
    with pytest.raises(StaleEpoch, match="term 1 is no longer in charge"):
        term.check((1 << 32) + 9)
