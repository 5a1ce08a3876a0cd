"""What is read back from Redis, where anybody on its network may have written it."""

from __future__ import annotations

import dataclasses
import random
import socket

import numpy as np
import xxhash

from chunkmesh.coverage import MAX_LAYER_BYTES, MAX_MODEL_LAYERS, Coverage, layer_mask
from chunkmesh.errors import CacheFault
from chunkmesh.kv_wire import Refused, ValueReader
from chunkmesh.page_record import (
    LAYER_HEADER_BYTES,
    RECORD_BYTES,
    RECORD_FIELD,
    decode_record,
    encode_record,
)
from chunkmesh.pages import DIGEST_BYTES
from chunkmesh.stored_page import describe_page, key_digest, page_key
from chunkmesh.v1 import hicache_pb2 as pb
from hicache import codec
from hicache.audit_log import decode_deed
from hicache.changes import ChangeKind, Stored, Summary
from hicache.kept_state import decode_values
from hicache.namespace_record import decode_info, encode_info
from hicache.namespaces import NamespaceInfo, NamespaceState
from hicache.page_import import ArrivingPage
from hicache.page_values import is_sound
from hicache.replication.event_codec import decode_events, encode_event
from hicache.replication.events import (
    Cleared,
    Committed,
    Event,
    Gone,
    Leased,
    Lost,
    Released,
    Told,
    Unlinked,
)
from tests.fuzz.mutation import Draw, mutated
from tests.fuzz.target import Target
from tests.page_samples import FORM, NAMESPACE, chain, encoded, layer_data, read_page

_DIGESTS = chain(2)
_PAGE = encoded(_DIGESTS[:1], range(4))[0]
_DIGEST = _PAGE.digest
_LAYER = bytes(_PAGE.layers[1][1])
_INFO = NamespaceInfo(
    fingerprint=bytes(32),
    model="tiny",
    kv_dtype="float32",
    page_tokens=16,
    rope="{}",
    adapter="",
    salted=True,
)
_VALUE_BYTES = 40
_REPLIES = (
    b"*2\r\n$40\r\n" + bytes(40) + b"\r\n$-1\r\n",
    b"*2\r\n$3\r\nabc\r\n$40\r\n" + b"x" * 40 + b"\r\n",
    b"-WRONGTYPE no hash\r\n",
)
_COVERAGE = Coverage(layers=layer_mask(0, 4), model_layers=4, layer_bytes=256)
_SUMMARY = Summary(
    kind=ChangeKind.MATCHED,
    namespace=NAMESPACE,
    first=_DIGESTS[0],
    num_pages=2,
    num_queried_pages=3,
    num_bytes=99,
)
_TOLD: tuple[Event, ...] = (
    Committed(
        namespace=NAMESPACE,
        stored=Stored(
            pages=((_DIGESTS[0], NAMESPACE, 0), (_DIGESTS[1], bytes(32), -7)),
            coverage=_COVERAGE,
        ),
    ),
    Gone(kind=ChangeKind.EVICTED, namespace=NAMESPACE, digests=_DIGESTS, num_bytes=9),
    Unlinked(digests=_DIGESTS),
    Told(summary=_SUMMARY, last=_DIGESTS[1]),
    Leased(lease_id="a-1", last=_DIGESTS[1], ttl_s=60.5),
    Released(lease_id="a-1"),
    Cleared(num_pages=3, num_bytes=4),
    Lost(),
)
_EVENTS = tuple(map(encode_event, _TOLD))


class _Said:
    """A socket on which a server has said something and then left."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def gettimeout(self) -> None:
        """Return that it would wait for ever."""

    def recv_into(self, into: memoryview, _num_bytes: int, _flags: int) -> int:
        """Hand out a few bytes at a time, whatever is asked for."""
        part = self._data[: min(len(into), 7)]
        into[: len(part)] = part
        self._data = self._data[len(part) :]
        return len(part)


def _check_reply(data: bytes) -> bool:
    """A value fills its room only if the reply really holds so many bytes."""
    room = bytearray(_VALUE_BYTES)
    said: socket.socket = _Said(data)  # type: ignore[assignment]
    reader = ValueReader(said)
    try:
        lengths = reader.read([[memoryview(room)], [memoryview(bytearray(_VALUE_BYTES))]])
    except (CacheFault, OSError):
        return False
    if isinstance(lengths, Refused):
        return True
    assert len(lengths) == 2
    if lengths[0] == _VALUE_BYTES:
        assert bytes(room) in data
    return True


def _check_record(data: bytes) -> bool:
    record = decode_record(_DIGEST, data)
    if record is None:
        return False
    assert data == encode_record(_DIGEST, record)
    form = record.format
    assert 0 < form.model_layers <= MAX_MODEL_LAYERS
    assert form.page_tokens > 0
    assert 0 < form.layer_bytes <= MAX_LAYER_BYTES
    return True


def _mutated_record() -> Draw:
    """Return what changes a record, and mostly gives it the checksum of what it says then."""
    mutate = mutated(_PAGE.record)
    seed = int.from_bytes(_DIGEST[:8], "little")

    def draw(random_: random.Random) -> bytes:
        data = mutate(random_)
        if random_.random() < 0.2:
            return data
        body = data[: RECORD_BYTES - 8]
        return body + xxhash.xxh3_64_intdigest(body, seed=seed).to_bytes(8, "little")

    return draw


def _check_layer(data: bytes) -> bool:
    """Only the very bytes of this page and layer are sound."""
    record = decode_record(_DIGEST, _PAGE.record)
    assert record is not None
    sound = is_sound(_DIGEST, record, 1, data)
    into = np.zeros((4, FORM.layer_bytes), dtype=np.uint8)
    values = [_PAGE.record, *(bytes(value) for _, value in _PAGE.layers)]
    values[2] = data
    read = read_page(_DIGEST, FORM, 0, values, into)
    assert (read == "ok") == sound == (data == _LAYER)
    if sound:
        assert (into[1] == layer_data(_DIGEST, 1)).all()
    return sound


def _check_described(data: bytes) -> bool:
    """A scan's replies: key, record, and names of fields, divided by line ends."""
    key, _, rest = data.partition(b"\n")
    record, _, fields = rest.partition(b"\nFIELDS\n")
    digest = key_digest(key)
    if digest is None:
        return False
    assert page_key(digest) == key
    names = fields.split(b"\n")
    page = describe_page(key, record, names)
    if page.record is not None:
        num_layers = page.record.format.model_layers
        held = {layer for layer in range(num_layers) if b"%d" % layer in names}
        found = 0 if page.coverage is None else page.coverage.layers
        assert found == sum(1 << layer for layer in held)
    return page.record is not None


def _fields(data: bytes) -> dict[bytes, bytes]:
    """Read NAME=VALUE lines, as HGETALL would give them."""
    pairs = (line.partition(b"=") for line in data.split(b"\n"))
    return {name: value for name, _, value in pairs}


def _lines(fields: dict[bytes, bytes]) -> bytes:
    return b"\n".join(name + b"=" + value for name, value in fields.items())


def _mutated_fields(lines: bytes) -> Draw:
    """Return what replaces values of fields as often as it changes bytes."""
    mutate = mutated(lines, words=_NUMBERS)

    def draw(random_: random.Random) -> bytes:
        if random_.random() < 0.5:
            return mutate(random_)
        fields = _fields(lines)
        for name in random_.sample(sorted(fields), random_.randint(1, 2)):
            fields[name] = random_.choice((*_NUMBERS, b"", b"\xff", b"x" * 5000))
        return _lines(fields)

    return draw


def _check_info(data: bytes) -> bool:
    """Whatever is believed of a namespace can be told to an admin."""
    info = decode_info(_fields(data))
    if info is None:
        return False
    state = NamespaceState(
        namespace=NAMESPACE,
        model_layers=4,
        layers=15,
        num_pages=1,
        num_partial_pages=0,
        num_bytes=1,
        num_pinned_pages=0,
        quota_bytes=0,
        num_hits=0,
        info=info,
    )
    told = codec.namespace_state(state)
    assert len(told.SerializeToString()) < 10_000
    assert info == decode_info(encode_info(info))
    return True


def _check_kept(data: bytes) -> bool:
    values = decode_values(_fields(data))
    assert all(len(each) == DIGEST_BYTES for each in values)
    assert all(0 <= value < 1 << 63 for value in values.values())
    return bool(values)


def _check_events(data: bytes) -> bool:
    """Events come out as they went in, and an event that cannot be read is told as none."""
    events = list(decode_events(data))
    assert len(events) <= len(data)
    known = [event for event in events if event is not None]
    again = [each for event in known for each in decode_events(encode_event(event))]
    assert list(map(_canonical, known)) == list(map(_canonical, again))
    for event in known:
        assert not isinstance(event, Committed) or event.stored.coverage.is_sound
    return bool(known)


def _canonical(event: object) -> object:
    """A lease's time is told in whole milliseconds, at least one."""
    if isinstance(event, Leased):
        return dataclasses.replace(event, ttl_s=max(1, round(event.ttl_s * 1000)) / 1000)
    return event


def _check_deed(data: bytes) -> bool:
    """A deed that is shown fits the message that shows it."""
    deed = decode_deed(_fields(data))
    if deed is None:
        return False
    pb.GetAuditLogResponse(
        entries=[
            pb.AuditEntry(
                unix_ms=1,
                peer=deed.peer,
                caller=deed.caller,
                method=deed.method,
                request=deed.request,
                num_pages=deed.num_pages,
                num_bytes=deed.num_bytes,
            )
        ]
    )
    return True


def _check_import(data: bytes) -> bool:
    """What comes of a page that is imported is sound, layer by layer."""
    page = ArrivingPage(_DIGEST)
    try:
        message = pb.ImportRequest.FromString(data)
    except Exception as error:  # noqa: BLE001 - only the chassis's own refusal may come
        assert type(error).__name__ == "DecodeError"  # noqa: PT017
        return False
    page.add(message.fields)
    for layer, value in page.layers.items():
        assert page.record is not None
        assert is_sound(_DIGEST, page.record, layer, value)
    return bool(page.layers) and not page.is_refused


_DESCRIBED = (
    page_key(_DIGEST) + b"\n" + _PAGE.record + b"\nFIELDS\n" + b"m\n0\n1\n2\n3",
    page_key(_DIGEST) + b"\n" + _PAGE.record + b"\nFIELDS\n" + b"m\n7\n0001\n4095",
)
_INFOS = (_lines(encode_info(_INFO)),)
_KEPT = (_lines({_DIGEST.hex().encode(): b"0", _DIGESTS[1].hex().encode(): b"%d" % (2**63 - 1)}),)
_DEEDS = (
    b"peer=ipv4:1\nmethod=Pin\nrequest=all pages\nnum_pages=3\nnum_bytes=4096",
    b"peer=ipv4:1\ncaller=admin\nmethod=Pin\nrequest=all pages\nnum_pages=3\nnum_bytes=4096",
)
_IMPORTS = (
    pb.ImportRequest(
        digest=_DIGEST,
        fields=[
            pb.PageField(name=RECORD_FIELD, value=_PAGE.record),
            *(pb.PageField(name=b"%d" % layer, value=bytes(v)) for layer, v in _PAGE.layers),
        ],
    ).SerializeToString(),
)
_NUMBERS = (b"-1", b"1_0", b"0x1", b" 7", b"4294967296", b"99999999999999999999", b"1" * 5000)

TARGETS = (
    Target(
        name="RESP reply",
        seeds=_REPLIES,
        check=_check_reply,
        values=mutated(*_REPLIES, words=(b"\r\n", b"$-1\r\n", b"$99999999999\r\n", *_NUMBERS)),
    ),
    Target(
        name="page record",
        seeds=(_PAGE.record,),
        check=_check_record,
        values=_mutated_record(),
    ),
    Target(
        name="page layer",
        seeds=(_LAYER,),
        check=_check_layer,
        values=mutated(_LAYER, _LAYER[:LAYER_HEADER_BYTES]),
    ),
    Target(
        name="scanned page",
        seeds=_DESCRIBED,
        check=_check_described,
        values=mutated(*_DESCRIBED, words=_NUMBERS),
    ),
    Target(
        name="namespace record",
        seeds=_INFOS,
        check=_check_info,
        values=_mutated_fields(_INFOS[0]),
    ),
    Target(
        name="kept pins",
        seeds=_KEPT,
        check=_check_kept,
        values=_mutated_fields(_KEPT[0]),
    ),
    Target(
        name="replica events",
        seeds=_EVENTS,
        check=_check_events,
        values=mutated(*_EVENTS, b"".join(_EVENTS)),
    ),
    Target(
        name="audit entry",
        seeds=_DEEDS,
        check=_check_deed,
        values=_mutated_fields(_DEEDS[0]),
    ),
    Target(
        name="imported page",
        seeds=_IMPORTS,
        check=_check_import,
        values=mutated(*_IMPORTS),
    ),
)
