"""The order of activations on one link: what every sender writes before a payload."""

from __future__ import annotations

import torch

from chunkmesh.transports import header
from chunkmesh.transports.base import Activation
from chunkmesh.transports.sequence import OutboundSequence
from tests.transport_pairs import make_payload, make_spec


def test_what_is_sent_from_a_cpu_has_its_checksum() -> None:
    """Else nobody behind could tell that it was damaged on its way."""
    spec = make_spec()
    payload = make_payload(spec, 2, 1)
    with OutboundSequence(spec).next(Activation(seq_no=0, num_tokens=2), payload) as data:
        assert header.checksum(payload) == header.decode(data).checksum


def test_what_is_elsewhere_is_not_copied_for_one() -> None:
    """A GPU's bytes would have to come to the CPU and be waited for."""
    spec = make_spec()
    payload = torch.empty(make_payload(spec, 2, 1).numel(), dtype=torch.uint8, device="meta")
    with OutboundSequence(spec).next(Activation(seq_no=0, num_tokens=2), payload) as data:
        assert header.decode(data).checksum is None
