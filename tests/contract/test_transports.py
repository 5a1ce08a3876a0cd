"""What every transport must do, run over all three of them."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

from chunkmesh.errors import ConfigError, InvariantViolated, LinkError
from chunkmesh.transports.base import Activation
from chunkmesh.transports.create import create
from chunkmesh.transports.memory import MemoryTransport
from tests.transport_pairs import (
    DEADLINE_S,
    Pair,
    connect,
    make_payload,
    make_spec,
    new_buffer,
)

UCX_LANES = {"tcp", "sysv", "posix", "cma", "self", "cuda_ipc", "cuda_copy"}
"""On one host; the latter two where there is a GPU."""


async def test_payloads_arrive_in_order(pair: Pair) -> None:
    """Stages compute microbatches in order, so a link may neither swap nor change any."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    into = new_buffer(spec)
    for seq_no in range(50):
        activation = Activation(seq_no=seq_no, num_tokens=seq_no % 16 + 1)
        payload = make_payload(spec, activation.num_tokens, seq_no)
        _, received = await asyncio.gather(sender.send(activation, payload), receiver.receive(into))
        assert received == activation
        assert torch.equal(into[: payload.numel()], payload)


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 4095, 4096, 4097, 70_000, 5_000_000])
async def test_any_size_arrives(pair: Pair, num_tokens: int) -> None:
    """One byte rows: sizes around the protocols' own thresholds must not matter."""
    spec = make_spec(hidden_size=1, max_tokens=5_000_000, dtype=torch.float16)
    sender, receiver = await connect(pair, spec)
    into = new_buffer(spec)
    activation = Activation(seq_no=0, num_tokens=num_tokens)
    payload = make_payload(spec, num_tokens, 3)
    await asyncio.gather(sender.send(activation, payload), receiver.receive(into))
    assert torch.equal(into[: payload.numel()], payload)
    assert bool((into[payload.numel() :] == 255).all())


async def test_32_mib_pass(pair: Pair) -> None:
    """O14(d): 4096 tokens of hidden size 4096 in bf16 are far above gRPC's default of 4 MB."""
    spec = make_spec(hidden_size=4096, max_tokens=4096, dtype=torch.bfloat16)
    sender, receiver = await connect(pair, spec)
    into = new_buffer(spec)
    payload = make_payload(spec, 4096, 1)
    activation = Activation(seq_no=0, num_tokens=4096)
    assert payload.numel() == 33_554_432
    _, received = await asyncio.gather(sender.send(activation, payload), receiver.receive(into))
    assert received == activation
    assert torch.equal(into, payload)


async def test_a_receive_may_be_posted_before_or_after_the_send(pair: Pair) -> None:
    """Slots wait for activations, but when all are full the activation waits for a slot."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    into = new_buffer(spec)
    early = asyncio.create_task(receiver.receive(into))
    await asyncio.sleep(0.02)
    first = make_payload(spec, 2, 1)
    await sender.send(Activation(seq_no=0, num_tokens=2), first)
    await early
    assert torch.equal(into[: first.numel()], first)
    second = make_payload(spec, 3, 2)
    late = asyncio.create_task(sender.send(Activation(seq_no=1, num_tokens=3), second))
    await asyncio.sleep(0.02)
    await receiver.receive(into)
    await late
    assert torch.equal(into[: second.numel()], second)


async def test_a_cancelled_receive_loses_nothing(pair: Pair) -> None:
    """A consumer that gives up for a while must still find the next activation."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    given_back = new_buffer(spec)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiver.receive(given_back), 0.02)
    into = new_buffer(spec)
    payload = make_payload(spec, 5, 9)
    activation = Activation(seq_no=0, num_tokens=5)
    _, received = await asyncio.gather(sender.send(activation, payload), receiver.receive(into))
    assert received == activation
    assert torch.equal(into[: payload.numel()], payload)
    assert bool((given_back == 255).all())


async def test_a_receive_cancelled_while_data_comes_loses_nothing(pair: Pair) -> None:
    """Giving up at any moment of a transfer must not tear the payload."""
    spec = make_spec(hidden_size=4096, max_tokens=1024, dtype=torch.bfloat16)
    sender, receiver = await connect(pair, spec)
    payload = make_payload(spec, 1024, 5)
    sending = asyncio.create_task(sender.send(Activation(seq_no=0, num_tokens=1024), payload))
    buffers = [new_buffer(spec) for _ in range(8)]
    for into in buffers:
        task = asyncio.create_task(receiver.receive(into))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            break
    else:
        into = new_buffer(spec)
        await receiver.receive(into)
    await sending
    assert torch.equal(into, payload)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("token", b"y" * 16, "token"),
        ("epoch", 8, "epoch"),
        ("boundary_layer", 16, "boundary"),
        ("hidden_size", 9, "shape"),
        ("dtype", torch.bfloat16, "shape"),
        ("max_tokens", 17, "shape"),
    ],
)
async def test_another_link_is_refused(pair: Pair, field: str, value: object, reason: str) -> None:
    """A worker of another epoch or split must not feed this stage; the right one still may."""
    spec = make_spec(epoch=7)
    accepting = asyncio.create_task(pair.downstream.accept(spec))
    await asyncio.sleep(0.01)
    with pytest.raises(LinkError, match=f"refused: {reason}"):
        await pair.upstream.dial(
            pair.downstream.address,
            dataclasses.replace(spec, **{field: value}),  # type: ignore[arg-type]
        )
    sender = await pair.upstream.dial(pair.downstream.address, spec)
    receiver = await accepting
    await sender.close()
    await receiver.close()


async def test_a_token_works_once(pair: Pair) -> None:
    """Who overhears a token of a standing link must not be able to use it."""
    spec = make_spec()
    await connect(pair, spec)
    with pytest.raises(LinkError, match="refused: token"):
        await pair.upstream.dial(pair.downstream.address, spec)


async def test_a_cancelled_accept_disarms_its_token(pair: Pair) -> None:
    """A Join that was replaced must not leave a door open."""
    spec = make_spec()
    accepting = asyncio.create_task(pair.downstream.accept(spec))
    await asyncio.sleep(0.02)
    accepting.cancel()
    await asyncio.wait([accepting])
    with pytest.raises(LinkError, match="refused: token"):
        await pair.upstream.dial(pair.downstream.address, spec)


async def test_dialling_nobody_is_a_link_error(name: str, pair: Pair) -> None:
    """A neighbour that is not there must be told from one that refuses."""
    address = pair.downstream.address
    await pair.downstream.close()
    with pytest.raises(LinkError, match=address):
        await asyncio.wait_for(pair.upstream.dial(address, make_spec()), DEADLINE_S)


async def test_an_address_in_use_is_a_config_error(pair: Pair) -> None:
    """Two workers on one data port would steal each other's links."""
    network = pair.downstream._network if isinstance(pair.downstream, MemoryTransport) else None
    other = create(pair.upstream.name, pair.downstream.address, network=network)
    _, _, port = pair.downstream.address.rpartition(":")
    with pytest.raises(ConfigError, match=port):
        await other.start()
    await other.close()


async def test_sends_that_break_the_order_are_bugs(pair: Pair) -> None:
    """A gap, a wrong size or a wrong type of payload is our own mistake, not the peer's."""
    spec = make_spec()
    sender, _ = await connect(pair, spec)
    payload = make_payload(spec, 2, 1)
    for activation, tensor in (
        (Activation(seq_no=1, num_tokens=2), payload),
        (Activation(seq_no=0, num_tokens=3), payload),
        (Activation(seq_no=0, num_tokens=17), payload),
        (Activation(seq_no=0, num_tokens=2), payload.view(torch.float32)),
    ):
        with pytest.raises(InvariantViolated):
            await sender.send(activation, tensor)


async def test_too_small_a_buffer_is_a_bug(pair: Pair) -> None:
    """A receive must be ready for the largest activation."""
    spec = make_spec()
    _, receiver = await connect(pair, spec)
    with pytest.raises(InvariantViolated):
        await receiver.receive(torch.empty(spec.max_bytes - 1, dtype=torch.uint8))


@pytest.mark.parametrize("closing", ["sender", "receiver"])
async def test_close_ends_a_pending_receive(pair: Pair, closing: str) -> None:
    """Whichever end closes, a stage that waits must hear of it."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    waiting = asyncio.create_task(receiver.receive(new_buffer(spec)))
    await asyncio.sleep(0.02)
    await (sender if closing == "sender" else receiver).close()
    with pytest.raises(LinkError):
        await asyncio.wait_for(waiting, DEADLINE_S)


@pytest.mark.parametrize("closing", ["sender", "receiver"])
async def test_close_ends_a_pending_send(pair: Pair, closing: str) -> None:
    """A send that nobody receives must not outlive the link."""
    spec = make_spec(hidden_size=4096, max_tokens=1024)
    sender, receiver = await connect(pair, spec)
    payload = make_payload(spec, 1024, 1)
    waiting = asyncio.create_task(sender.send(Activation(seq_no=0, num_tokens=1024), payload))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await (sender if closing == "sender" else receiver).close()
    with pytest.raises(LinkError):
        await asyncio.wait_for(waiting, DEADLINE_S)


async def test_a_cancelled_send_breaks_the_link(pair: Pair) -> None:
    """Half an activation may be under way, so no other may follow it."""
    spec = make_spec(hidden_size=4096, max_tokens=1024)
    sender, receiver = await connect(pair, spec)
    payload = make_payload(spec, 1024, 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send(Activation(seq_no=0, num_tokens=1024), payload), 0.1)
    with pytest.raises(LinkError):
        await sender.send(Activation(seq_no=0, num_tokens=1024), payload)
    with pytest.raises(LinkError):
        await asyncio.wait_for(receiver.receive(new_buffer(spec)), DEADLINE_S)


async def test_operations_on_a_closed_link_are_link_errors(pair: Pair) -> None:
    """A late caller must not hang or crash."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    await sender.close()
    await receiver.close()
    await sender.close()
    await receiver.close()
    with pytest.raises(LinkError):
        await sender.send(Activation(seq_no=0, num_tokens=1), make_payload(spec, 1, 1))
    with pytest.raises(LinkError):
        await receiver.receive(new_buffer(spec))


async def test_closing_a_transport_ends_its_links_and_accepts(pair: Pair) -> None:
    """A worker that stops leaves no neighbour waiting."""
    spec = make_spec()
    _, receiver = await connect(pair, spec)
    waiting = asyncio.create_task(receiver.receive(new_buffer(spec)))
    accepting = asyncio.create_task(pair.downstream.accept(make_spec(epoch=2)))
    await asyncio.sleep(0.02)
    await pair.downstream.close()
    for task in (waiting, accepting):
        with pytest.raises(LinkError):
            await asyncio.wait_for(task, DEADLINE_S)


async def test_links_of_successive_epochs(pair: Pair) -> None:
    """Every epoch has new links between the same workers; the old ones end without a trace."""
    for epoch in range(1, 6):
        spec = make_spec(epoch=epoch)
        sender, receiver = await connect(pair, spec)
        into = new_buffer(spec)
        for seq_no in range(3):
            payload = make_payload(spec, 3, epoch + seq_no)
            await asyncio.gather(
                sender.send(Activation(seq_no=seq_no, num_tokens=3), payload),
                receiver.receive(into),
            )
            assert torch.equal(into[: payload.numel()], payload)
        await (sender if epoch % 2 else receiver).close()


async def test_a_new_epoch_while_the_old_link_still_carries(pair: Pair) -> None:
    """Join overtakes: the next link is made before the old one is torn down."""
    old, new = make_spec(epoch=1), make_spec(epoch=2)
    old_sender, old_receiver = await connect(pair, old)
    stale = make_payload(old, 2, 1)
    sending = asyncio.create_task(old_sender.send(Activation(seq_no=0, num_tokens=2), stale))
    new_sender, new_receiver = await connect(pair, new)
    fresh = make_payload(new, 2, 77)
    into = new_buffer(new)
    await asyncio.gather(
        new_sender.send(Activation(seq_no=0, num_tokens=2), fresh), new_receiver.receive(into)
    )
    assert torch.equal(into[: fresh.numel()], fresh)
    await old_receiver.close()
    await asyncio.wait([sending], timeout=DEADLINE_S)
    assert sending.done()
    sending.exception()


async def test_a_sender_tells_what_it_uses(pair: Pair) -> None:
    """A silent fall-back to another transport would look like a slow network."""
    sender, _ = await connect(pair, make_spec())
    known = {"memory": {"memory"}, "grpc": {"grpc"}, "ucx": UCX_LANES}
    assert set(sender.transport.split("+")) <= known[pair.upstream.name]
    assert 0 <= sender.rtt_us < 1_000_000
