"""Room for a page, and the verdict on what was read into it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chunkmesh.page_room import PageRoom
from tests.page_samples import FORM, chain, encoded, layer_data, read_page

PAGE, OTHER = chain(2)
FIRST_LAYER, NUM_LAYERS = 1, 2


def values(digest: bytes = PAGE) -> list[bytes | None]:
    """Return the values of two layers as they stand in Redis."""
    (page,) = encoded((digest,), range(FIRST_LAYER, FIRST_LAYER + NUM_LAYERS))
    return [page.record, *(bytes(value) for _, value in page.layers)]


def room() -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return memory for two layers."""
    return np.zeros((NUM_LAYERS, FORM.layer_bytes), dtype=np.uint8)


def test_a_sound_page_lands_where_it_belongs() -> None:
    """Contents stand in the array without their headers."""
    into = room()
    assert read_page(PAGE, FORM, FIRST_LAYER, values(), into) == "ok"
    for layer in range(NUM_LAYERS):
        expected = layer_data(PAGE, FIRST_LAYER + layer)
        assert expected.tobytes() == into[layer].tobytes()


@pytest.mark.parametrize("index", range(1 + NUM_LAYERS))
def test_a_value_that_is_not_there_makes_a_page_missing(index: int) -> None:
    """Half a page is none."""
    found = values()
    found[index] = None
    assert read_page(PAGE, FORM, FIRST_LAYER, found, room()) == "missing"


@pytest.mark.parametrize("length", [0, 15, 16, FORM.layer_bytes + 15, FORM.layer_bytes + 17])
@pytest.mark.parametrize("index", range(1 + NUM_LAYERS))
def test_a_value_of_another_length_makes_a_page_damaged(index: int, length: int) -> None:
    """A truncated or longer value must not be taken for one that fits."""
    found = values()
    found[index] = bytes(length)
    assert read_page(PAGE, FORM, FIRST_LAYER, found, room()) == "damaged"


@pytest.mark.parametrize("index", range(1 + NUM_LAYERS))
def test_a_flipped_bit_makes_a_page_damaged(index: int) -> None:
    """Of the record or of any layer."""
    found = values()
    value = bytearray(found[index] or b"")
    value[-1] ^= 1
    found[index] = bytes(value)
    assert read_page(PAGE, FORM, FIRST_LAYER, found, room()) == "damaged"


def test_a_page_of_another_digest_layer_or_format_is_damaged() -> None:
    """O19: each value carries what it is of."""
    other_form = dataclasses.replace(FORM, page_tokens=32)
    assert read_page(OTHER, FORM, FIRST_LAYER, values(), room()) == "damaged"
    assert read_page(PAGE, FORM, FIRST_LAYER + 1, values(), room()) == "damaged"
    assert read_page(PAGE, other_form, FIRST_LAYER, values(), room()) == "damaged"


def test_a_page_in_pieces_is_as_good_as_its_worst_piece() -> None:
    """A later piece that is sound must not make good an earlier one."""
    pages = PageRoom(PAGE, FORM, FIRST_LAYER, room())
    record, first, second = (value or b"" for value in values())
    (record_room,), (header, payload) = pages.parts(range(1))
    record_room[:] = record
    header[:], payload[:] = first[:16], first[16:]
    assert pages.check(range(1), [len(record), len(first)]) == "ok"
    assert pages.check(range(1, 2), [len(record), len(second)]) == "damaged"
    assert pages.check(range(1), [len(record), len(first)]) == "damaged"
    assert pages.check(range(1), [len(record), None]) == "missing"
    assert pages.check(range(1), [len(record), len(first)]) == "missing"
