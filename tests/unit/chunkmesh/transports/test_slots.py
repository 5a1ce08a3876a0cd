"""The hand-over between event loop and compute thread, over links in memory."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

import pytest
import torch

from chunkmesh.errors import InvariantViolated, LinkError
from chunkmesh.transports.base import Activation, LinkSpec, Receiver, Sender
from chunkmesh.transports.slots import InboundSlots, OutboundSlots
from tests.transport_pairs import close_pair, connect, make_spec, start_pair

DEADLINE_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link with slots at both ends, both running."""

    spec: LinkSpec
    sender: Sender
    receiver: Receiver
    inbound: InboundSlots
    outbound: OutboundSlots
    faults: list[LinkError]
    receiving: asyncio.Task[None]
    """The run of inbound."""

    async def post(self, seq_no: int, num_tokens: int = 2) -> None:
        """Send an activation full of its seq_no from a compute thread."""
        await asyncio.to_thread(self.post_now, seq_no, num_tokens)

    def post_now(self, seq_no: int, num_tokens: int = 2) -> None:
        """Send an activation full of its seq_no."""
        self.outbound.acquire(num_tokens, DEADLINE_S).fill_(float(seq_no))
        self.outbound.post(Activation(seq_no=seq_no, num_tokens=num_tokens))

    async def take(self, seq_no: int, timeout_s: float = DEADLINE_S) -> torch.Tensor:
        """Take an activation in a compute thread."""
        return await asyncio.to_thread(self.inbound.take, seq_no, timeout_s)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    """Make a link between two workers of one process."""
    pair = await start_pair("memory")
    spec = make_spec(hidden_size=4, max_tokens=8, dtype=torch.bfloat16)
    sender, receiver = await connect(pair, spec)
    faults: list[LinkError] = []
    inbound = InboundSlots(receiver, spec, on_fault=faults.append)
    outbound = OutboundSlots(sender, spec, on_fault=faults.append)
    running = [asyncio.create_task(inbound.run()), asyncio.create_task(outbound.run())]
    yield Link(
        spec=spec,
        sender=sender,
        receiver=receiver,
        inbound=inbound,
        outbound=outbound,
        faults=faults,
        receiving=running[0],
    )
    inbound.close()
    outbound.close()
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    await close_pair(pair)


async def blocked(call: Callable[[], object]) -> asyncio.Task[object]:
    """Start a call in a compute thread and return while it blocks."""
    task: asyncio.Task[object] = asyncio.create_task(asyncio.to_thread(call))
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_rows_arrive_as_they_were_written(link: Link) -> None:
    """The compute threads see [T, D] of the link's dtype, of any T."""
    for seq_no, num_tokens in enumerate([8, 1, 5]):
        await link.post(seq_no, num_tokens)
        rows_TD = await link.take(seq_no)
        assert rows_TD.shape == (num_tokens, 4)
        assert rows_TD.dtype == torch.bfloat16
        assert bool((rows_TD == seq_no).all())
        link.inbound.release(seq_no)


async def test_an_activation_waits_in_its_slot(link: Link) -> None:
    """It may come before its metadata; a second one may come while the first is computed."""
    await link.post(0)
    await link.post(1)
    await wait_until(lambda: link.outbound.bytes_sent == 2 * 2 * 4 * 2)
    first_TD = await link.take(0)
    second_TD = await link.take(1)
    assert (float(first_TD[0, 0]), float(second_TD[0, 0])) == (0.0, 1.0)


async def test_a_taken_slot_is_not_overwritten(link: Link) -> None:
    """While the compute thread reads its slots, later activations wait at the sender."""
    for seq_no in range(4):
        await link.post(seq_no)
    first_TD, second_TD = await link.take(0), await link.take(1)
    with pytest.raises(TimeoutError):
        await link.take(2, timeout_s=0.1)
    assert (float(first_TD[0, 0]), float(second_TD[0, 0])) == (0.0, 1.0)
    link.inbound.release(1)
    assert float((await link.take(2))[0, 0]) == 2.0
    assert float(first_TD[0, 0]) == 0.0


async def test_acquire_blocks_only_when_all_slots_are_being_sent(link: Link) -> None:
    """Two slots let compute and transfer overlap; a third activation has nowhere to be."""
    for seq_no in range(4):
        await link.post(seq_no)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(link.outbound.acquire, 1, 0.1)
    await link.take(0)
    link.inbound.release(0)
    await link.post(4)


async def test_post_returns_at_once(link: Link) -> None:
    """The compute thread goes on with the next microbatch while the last one is sent."""
    link.post_now(0)
    link.post_now(1)
    assert link.outbound.bytes_sent == 0
    await wait_until(lambda: link.outbound.bytes_sent == 32)


async def test_send_times_and_bytes_are_told(link: Link) -> None:
    """The trace shows what the wire cost."""
    await link.post(0)
    await wait_until(lambda: link.outbound.bytes_sent == 16)
    assert 0 < link.outbound.last_send_us < DEADLINE_S * 1e6


async def test_another_activation_than_expected_is_a_link_error(link: Link) -> None:
    """A stage never computes with the wrong microbatch's activation."""
    await link.post(0)
    with pytest.raises(LinkError, match="0 came, 1 was expected"):
        await link.take(1)
    with pytest.raises(LinkError):
        await link.take(0)


async def test_a_broken_link_is_told_after_what_arrived(link: Link) -> None:
    """What came before the fault is whole; the fault is told once and stays."""
    await link.post(0)
    await wait_until(lambda: link.outbound.bytes_sent == 16)
    await link.sender.close()
    assert float((await link.take(0))[0, 0]) == 0.0
    for _ in range(2):
        with pytest.raises(LinkError, match="closed"):
            await link.take(1)
    assert len(link.faults) == 1


async def test_a_failed_send_is_told_to_the_next_acquire(link: Link) -> None:
    """The compute thread learns of a lost neighbour where it would block for ever."""
    await link.receiver.close()
    await link.post(0)
    await wait_until(lambda: bool(link.faults))
    await asyncio.to_thread(link.outbound.acquire, 1)
    link.outbound.post(Activation(seq_no=1, num_tokens=1))
    for _ in range(2):
        with pytest.raises(LinkError):
            await asyncio.to_thread(link.outbound.acquire, 1, DEADLINE_S)


async def test_close_wakes_a_blocked_take(link: Link) -> None:
    """Shutting down must not wait for an activation that never comes."""
    taking = await blocked(lambda: link.inbound.take(0))
    link.inbound.close()
    with pytest.raises(LinkError, match="closed"):
        await asyncio.wait_for(taking, DEADLINE_S)
    assert link.faults == []


async def test_close_wakes_a_blocked_acquire(link: Link) -> None:
    """The same on the sending side."""
    for seq_no in range(4):
        await link.post(seq_no)
    acquiring = await blocked(lambda: link.outbound.acquire(1))
    link.outbound.close()
    with pytest.raises(LinkError, match="closed"):
        await asyncio.wait_for(acquiring, DEADLINE_S)


async def test_cancelling_run_wakes_the_compute_thread(link: Link) -> None:
    """A task group that ends takes its slots with it."""
    taking = await blocked(lambda: link.inbound.take(0))
    link.receiving.cancel()
    with pytest.raises(LinkError, match="closed"):
        await asyncio.wait_for(taking, DEADLINE_S)
    assert link.faults == []


async def test_misuse_is_a_bug(link: Link) -> None:
    """A slot has one owner at a time."""
    with pytest.raises(InvariantViolated):
        link.inbound.release(0)
    with pytest.raises(InvariantViolated):
        link.outbound.post(Activation(seq_no=0, num_tokens=1))
    link.outbound.acquire(2)
    with pytest.raises(InvariantViolated):
        link.outbound.acquire(2)
    with pytest.raises(InvariantViolated):
        link.outbound.post(Activation(seq_no=0, num_tokens=1))
