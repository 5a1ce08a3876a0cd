"""The order of activations on one link, checked at both ends; the same for every transport."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from chunkmesh.errors import InvariantViolated
from chunkmesh.transports import header
from chunkmesh.transports.base import Activation, LinkSpec


class OutboundSequence:
    """Makes the headers of a sender, one activation at a time, seq_no from 0 without gaps.

    What is sent from the CPU has a checksum; what is on a GPU would have to be copied for one.
    """

    def __init__(self, spec: LinkSpec) -> None:
        self._spec = spec
        self._seq_no = 0
        self._sending = False

    @contextlib.contextmanager
    def next(self, activation: Activation, payload: torch.Tensor) -> Iterator[bytes]:
        """Yield the header of the next activation while it is sent."""
        if self._sending:
            raise InvariantViolated("two sends at a time on one link")
        if activation.seq_no != self._seq_no:
            raise InvariantViolated(f"sent seq_no {activation.seq_no}, next is {self._seq_no}")
        if not 0 < activation.num_tokens <= self._spec.max_tokens:
            raise InvariantViolated(f"sent {activation.num_tokens} tokens at once")
        check_buffer(payload, header.payload_bytes(self._spec, activation), exact=True)
        digest = header.checksum(payload) if payload.device.type == "cpu" else None
        self._sending = True
        try:
            yield header.encode(self._spec, activation, digest)
        finally:
            self._sending = False
        self._seq_no += 1


class InboundSequence:
    """Checks what a receiver gets against the link and the order."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.seq_no = 0
        """Of the next activation."""

    def check_into(self, into: torch.Tensor) -> None:
        """Refuse a buffer that could not hold the largest activation."""
        check_buffer(into, self.spec.max_bytes, exact=False)

    def open(self, data: bytes) -> header.Header:
        """Return the header of the next activation.

        Raises:
            LinkError: it is malformed or another activation's; names what.
        """
        opened = header.decode(data)
        header.check(opened, self.spec, self.seq_no)
        return opened

    def finish(
        self, opened: header.Header, payload: torch.Tensor, received_bytes: int
    ) -> Activation:
        """Return the activation whose payload is at the front of a buffer; the next one follows.

        Raises:
            LinkError: the payload has another length or checksum than its header says.
        """
        header.check_payload(opened, payload, received_bytes)
        self.seq_no += 1
        return Activation(seq_no=opened.seq_no, num_tokens=opened.num_tokens)


def check_buffer(buffer: torch.Tensor, num_bytes: int, *, exact: bool) -> None:
    """Refuse a tensor that is no flat uint8 buffer of (at least) num_bytes: our own bug."""
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
        raise InvariantViolated(f"a payload must be flat uint8, not {buffer.dtype}")
    if buffer.numel() < num_bytes or (exact and buffer.numel() != num_bytes):
        raise InvariantViolated(f"a payload of {buffer.numel()} bytes, expected {num_bytes}")
