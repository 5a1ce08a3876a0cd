"""The bytes of a page in Redis."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chunkmesh.coverage import MAX_LAYER_BYTES
from chunkmesh.page_record import (
    LAYER_HEADER_BYTES,
    PageMemory,
    PageRecord,
    decode_record,
    encode_layer,
    encode_record,
    field_layer,
    is_sound_layer,
)
from chunkmesh.stored_page import describe_page, key_digest, page_key
from tests.page_samples import FORM, NAMESPACE, chain, encoded, layer_data

PAGE, OTHER = chain(2)
RECORD = PageRecord(format=FORM, namespace=NAMESPACE, parent=NAMESPACE, page_index=7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_record_comes_back(dtype: str) -> None:
    """Any worker reads what another one wrote."""
    record = dataclasses.replace(RECORD, format=dataclasses.replace(FORM, dtype=dtype))
    assert record == decode_record(PAGE, encode_record(PAGE, record))


def test_a_record_is_sound_as_a_whole_or_not_at_all() -> None:
    """Whoever can write to Redis can write anything."""
    value = encode_record(PAGE, RECORD)
    for position in range(len(value)):
        damaged = bytearray(value)
        damaged[position] ^= 0x10
        assert decode_record(PAGE, bytes(damaged)) is None
    assert decode_record(PAGE, value[:-1]) is None
    assert decode_record(PAGE, value + b"\0") is None
    assert decode_record(OTHER, value) is None


@pytest.mark.parametrize("field", ["model_layers", "page_tokens", "layer_bytes"])
def test_a_record_of_nonsense_sizes_is_refused(field: str) -> None:
    """A right checksum does not make a size right."""
    record = dataclasses.replace(RECORD, format=dataclasses.replace(FORM, **{field: 0}))  # type: ignore[arg-type]
    assert decode_record(PAGE, encode_record(PAGE, record)) is None


def layer_value(digest: bytes, layer: int) -> bytes:
    """Return a layer's value as it stands in Redis."""
    return bytes(encode_layer(digest, layer, layer_data(digest, layer), PageMemory()))


def is_sound(digest: bytes, layer: int, value: bytes) -> bool:
    """Check a value of the right length."""
    return is_sound_layer(digest, layer, value[:LAYER_HEADER_BYTES], value[LAYER_HEADER_BYTES:])


def test_a_record_of_absurd_size_is_refused() -> None:
    """Sums over such pages would not fit into any message."""
    form = dataclasses.replace(FORM, layer_bytes=MAX_LAYER_BYTES + 1)
    record = dataclasses.replace(RECORD, format=form)
    assert decode_record(PAGE, encode_record(PAGE, record)) is None


def test_a_layer_comes_back() -> None:
    """Bytes in are bytes out."""
    value = layer_value(PAGE, 3)
    assert is_sound(PAGE, 3, value)
    assert layer_data(PAGE, 3).tobytes() == value[LAYER_HEADER_BYTES:]


def test_a_layer_value_fits_one_page_and_one_layer_only() -> None:
    """O19: a value under a wrong key must never be used, however sound it is in itself."""
    value = layer_value(PAGE, 1)
    assert not is_sound(OTHER, 1, value)
    assert not is_sound(PAGE, 2, value)


@pytest.mark.parametrize("position", [0, 3, 5, 9, LAYER_HEADER_BYTES, -1])
def test_a_damaged_layer_is_refused(position: int) -> None:
    """One flipped bit anywhere."""
    value = bytearray(layer_value(PAGE, 1))
    value[position] ^= 1
    assert not is_sound(PAGE, 1, bytes(value))


def test_memory_is_used_again_only_when_it_is_cleared() -> None:
    """Two values of one batch must not lie on each other; the next batch needs no new memory."""
    memory = PageMemory()
    one, two = memory.take(8), memory.take(8)
    assert not np.shares_memory(one, two)
    memory.clear()
    assert np.shares_memory(one, memory.take(8))
    assert np.shares_memory(two, memory.take(8))
    memory.clear()
    assert len(memory.take(12)) == 12


def test_long_pages_are_written_in_commands_of_bounded_size() -> None:
    """One huge command would stall every other client of the server."""
    (page,) = encoded((PAGE,), range(4))
    commands = list(page.commands(600))
    assert [field for part in commands for field in part[::2]] == [b"m", b"0", b"1", b"2", b"3"]
    assert all(sum(map(len, part[1::2])) <= 600 for part in commands)
    assert len(commands) == 3


@pytest.mark.parametrize(
    ("field", "layer"), [(b"0", 0), (b"31", 31), (b"031", None), (b"m", None), (b"99999", None)]
)
def test_field_names(field: bytes, layer: int | None) -> None:
    """Only what a writer would write counts as a layer."""
    assert layer == field_layer(field)


@pytest.mark.parametrize(
    "key", [b"cm:", b"cm:zz", b"cm:" + b"AB" * 32, b"cm:" + b"ab" * 31, b"cm: " + b"ab" * 32, 7]
)
def test_foreign_keys_name_no_page(key: object) -> None:
    """A scan meets whatever else lives under the prefix."""
    assert key_digest(key) is None


def test_a_scanned_page_covers_the_layers_that_it_has() -> None:
    """Fields beyond the model, or of an unknown kind, count for nothing."""
    fields = [b"m", b"0", b"2", b"4", b"x", 5]
    found = describe_page(page_key(PAGE), encode_record(PAGE, RECORD), fields)
    assert found.coverage is not None
    assert (found.digest, found.record, found.coverage.layers) == (PAGE, RECORD, 0b101)
    assert describe_page(page_key(PAGE), None, fields).coverage is None
