"""Hostile bytes: valid ones with bits flipped, ends cut, parts swapped, lengths made extreme.

Drawn with a seeded random.Random: hypothesis draws a hundred such values a second, this thousands.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Draw = Callable[[random.Random], bytes]
"""Makes one hostile value."""

_EXTREMES = tuple(
    value.to_bytes(size, order)
    for size in (1, 2, 4, 8)
    for value in (
        *(0, 1, 2**7 - 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1)),
        *(2 ** (8 * size) - 2, 2 ** (8 * size) - 1),
    )
    for order in ("little", "big")
)
"""What fields of lengths and counts may be set to, in every width and order."""
_MAX_STEPS = 4
_MOST_BYTES = 1 << 16


def mutated(*seeds: bytes, words: Sequence[bytes] = ()) -> Draw:
    """Return what changes one of seeds in a few places.

    words of the format are put in, beside extreme numbers, other seeds and noise.
    """
    known = (*_EXTREMES, *words, *words, *seeds)

    def draw(random_: random.Random) -> bytes:
        data = random_.choice(seeds)
        for _ in range(random_.randint(1, _MAX_STEPS)):
            step = random_.choice(_STEPS)
            word = random_.choice(known) if random_.random() < 0.8 else random_.randbytes(8)
            data = step(data, random_, word)[:_MOST_BYTES]
        return data

    return draw


def _part(data: bytes, random_: random.Random) -> tuple[int, int]:
    """Return begin <= end of a part of data; short parts as often as long ones."""
    begin = random_.randint(0, len(data))
    longest = min(len(data) - begin, 2 ** random_.randint(0, 16))
    return begin, begin + random_.randint(0, longest)


def _flip(data: bytes, random_: random.Random, _word: bytes) -> bytes:
    if not data:
        return data
    at = random_.randrange(len(data))
    changed = data[at] ^ (1 << random_.randrange(8))
    return data[:at] + bytes([changed]) + data[at + 1 :]


def _cut(data: bytes, random_: random.Random, _word: bytes) -> bytes:
    begin, end = _part(data, random_)
    return data[:begin] + data[end:]


def _truncate(data: bytes, random_: random.Random, _word: bytes) -> bytes:
    return data[: random_.randint(0, len(data))]


def _insert(data: bytes, random_: random.Random, word: bytes) -> bytes:
    at = random_.randint(0, len(data))
    return data[:at] + word + data[at:]


def _replace(data: bytes, random_: random.Random, word: bytes) -> bytes:
    begin, end = _part(data, random_)
    return data[:begin] + word + data[end:]


def _overwrite(data: bytes, random_: random.Random, word: bytes) -> bytes:
    at = random_.randint(0, len(data))
    return data[:at] + word + data[at + len(word) :]


def _repeat(data: bytes, random_: random.Random, _word: bytes) -> bytes:
    begin, end = _part(data, random_)
    return data[:end] + data[begin:end] * random_.choice((1, 2, 100)) + data[end:]


def _swap(data: bytes, random_: random.Random, _word: bytes) -> bytes:
    begin, end = _part(data, random_)
    middle = (begin + end) // 2
    return data[:begin] + data[middle:end] + data[begin:middle] + data[end:]


_STEPS = (
    *(_flip, _flip, _cut, _truncate, _insert, _replace, _overwrite, _overwrite, _repeat, _swap),
)
