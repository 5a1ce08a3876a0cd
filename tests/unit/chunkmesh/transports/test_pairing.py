"""Which handshake gets which link."""

from __future__ import annotations

import asyncio

import pytest

from chunkmesh.errors import InvariantViolated, LinkError
from chunkmesh.transports.handshake import Refusal
from chunkmesh.transports.pairing import Pairing
from tests.transport_pairs import make_spec


class Connection:
    """Something that arrived."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        """Note it."""
        self.closed = True


async def test_a_connection_reaches_who_expects_it() -> None:
    """Two links may be formed at once; tokens keep them apart."""
    pairing: Pairing[Connection] = Pairing()
    specs = [make_spec(), make_spec()]
    waits = [asyncio.create_task(pairing.expect(spec)) for spec in specs]
    await asyncio.sleep(0)
    arrived = [Connection(), Connection()]
    for spec, connection in zip(reversed(specs), arrived, strict=True):
        assert pairing.judge(spec) is None
        pairing.claim(spec.token, connection)
        assert pairing.judge(spec) is Refusal.TOKEN
    assert await asyncio.gather(*waits) == list(reversed(arrived))


async def test_a_connection_that_nobody_wants_any_more_is_closed() -> None:
    """An accept that is cancelled just when its peer comes must not leak it."""
    pairing: Pairing[Connection] = Pairing()
    spec = make_spec()
    waiting = asyncio.create_task(pairing.expect(spec))
    await asyncio.sleep(0)
    connection = Connection()
    pairing.claim(spec.token, connection)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert connection.closed


async def test_a_token_is_armed_once() -> None:
    """Two waits for one token could not be told apart."""
    pairing: Pairing[Connection] = Pairing()
    spec = make_spec()
    waiting = asyncio.create_task(pairing.expect(spec))
    await asyncio.sleep(0)
    with pytest.raises(InvariantViolated):
        await pairing.expect(spec)
    assert pairing.judge(spec) is None
    pairing.close()
    with pytest.raises(LinkError):
        await waiting
